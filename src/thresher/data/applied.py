"""Notices that a pack already is what a selection makes of its own pack, as after an export."""

from typing import Protocol

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError


class Choice(Protocol):
    """What the check needs of a `Selection`, which imports this module."""

    ids: list[str]
    keep: np.ndarray
    fingerprint: str

    @property
    def final_labels(self) -> np.ndarray: ...
    @property
    def title(self) -> str: ...


def check_not_applied(choice: Choice, pack: Pack) -> None:
    """Raise InvalidValueError if `pack` holds the kept samples with the labels that people gave.

    Its fingerprint is another one than that of the pack that was exported. Costs nothing if it is
    the same one.
    """
    if pack.fingerprint == choice.fingerprint or not pack.meta.splits.get("train"):
        return
    train = pack.indices("train")
    kept = [id for id, keep in zip(choice.ids, choice.keep.tolist(), strict=True) if keep]
    positions = pack.positions(kept)
    same = len(kept) == len(train) and np.array_equal(np.sort(positions), train)
    if same and np.array_equal(pack.labels[positions], choice.final_labels[choice.keep]):
        raise InvalidValueError(
            f"{choice.title} has been applied to {pack.name} already: the training samples are "
            "those that it keeps, with their new labels",
            "use this pack without the selection, or the selection with its own pack",
        )
