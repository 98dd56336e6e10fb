"""What to do with a data set of another library where a pack is needed."""

import os

_ARRAYS = (
    "write its images and labels with `numpy.savez(FILE, images=…, labels=…)`, pack the file with "
    "`thresher data pack FILE PACK`, and use that pack"
)
_FIXES = {
    "PackDataset": "use the pack that it was made from",
    "DataFrame": "a table has no images: pack the folder or file that has them with "
    "`thresher data pack`, and use that pack",
    "Subset": f"{_ARRAYS}, with a selection of the samples that the subset has",
    "ConcatDataset": f"{_ARRAYS}, which holds the samples of all its parts",
    **dict.fromkeys(("Dataset", "ndarray", "Tensor"), _ARRAYS),
}
"""By names of types, so that neither torch nor pandas is loaded; the most special ones first."""


def instead_of(value: object) -> str:
    """Return what to do with an object that is not a pack; "" if nothing is known about it."""
    if isinstance(value, str | os.PathLike):
        return "open it with `Pack.open`"
    if hasattr(value, "save_to_disk"):  # of Hugging Face
        return (
            "write it with `save_to_disk`, pack that folder with `thresher data pack`, and use "
            "that pack"
        )
    names = [kind.__name__ for kind in type(value).__mro__]
    if names[0] == "Pack":
        return "pass its folder, `str(pack.root)`"
    return next((_FIXES[name] for name in names if name in _FIXES), "")
