"""`pack.json`: what it must hold. A field that is missing or of another kind is named."""

from pathlib import Path
from typing import Any

from thresher.errors import ThresherError

FORMAT = 1


def checked(meta: Any, root: Path) -> dict[str, Any]:
    """`meta` if it describes a pack; else a refusal that names the field."""
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ThresherError(
            f"{root} is not a pack of format {FORMAT}", "make it again with `thresher data pack`"
        )
    wrong = [name for name, fits in _FIELDS.items() if not fits(meta.get(name))]
    if not wrong and meta["image_shape"] and len(meta["mean"]) != meta["image_shape"][2]:
        wrong = ["mean"]
    if wrong:
        raise ThresherError(
            f'{root}/pack.json is damaged: its field "{wrong[0]}" is missing or wrong',
            "make the pack again",
        )
    return meta


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)
    )


def _shape(value: Any) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(_count(side) and side > 0 for side in value)
    )


def _shard(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _text(value.get("file"))
        and Path(value["file"]).name == value["file"]  # inside the folder, nowhere else
        and _count(value.get("samples"))
        and _count(value.get("bytes"))
        and _text(value.get("sha256"))
    )


_FIELDS = {
    "name": _text,
    "classes": lambda value: (
        isinstance(value, list) and bool(value) and all(isinstance(c, str) for c in value)
    ),
    "splits": lambda value: (
        isinstance(value, dict) and bool(value) and all(_count(n) for n in value.values())
    ),
    "image_shape": _shape,
    "mean": _numbers,
    "std": _numbers,
    "fingerprint": _text,
    "shards": lambda value: (
        isinstance(value, list) and bool(value) and all(_shard(s) for s in value)
    ),
}
