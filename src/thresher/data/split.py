"""A stratified validation split of the training samples."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thresher.errors import InvalidValueError

if TYPE_CHECKING:
    from thresher.data.pack import Pack


DEFAULT_SHARE = 0.1


@dataclass(frozen=True)
class HoldOut:
    """Which training samples of a pack are held out: the same for training and for filters."""

    size: float | None = None
    """A count, or a share below 1; None: a tenth if the pack has no split to test on, else none."""
    seed: int = 0

    def own_split(self, pack: "Pack") -> str | None:
        """Return the split of the pack that runs are validated on instead of held-out samples.

        That is its validation split, if it has test images, too, and no `size` is given.
        """
        own = self.size is None and pack.test_split == "test" and "validation" in pack.meta.splits
        return "validation" if own else None

    def mask(self, pack: "Pack") -> np.ndarray:
        """Return the samples held out, (n,) bool over the training samples in pack order."""
        labels = pack.labels[pack.indices("train")]
        size = self.size
        if size is None:
            size = DEFAULT_SHARE if pack.test_split is None else 0.0
        count = round(size)
        if 0 < size < 1:
            # A share of few samples is at least one, if another one is left to train on.
            count = max(0, min(max(1, round(size * len(labels))), len(labels) - 1))
        return hold_out(labels, count, self.seed)


def hold_out(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Choose `size` validation samples of those with these labels, as a mask (n,) bool.

    Each class contributes its share, rounded by largest remainder: 5,000 of CIFAR-10's 50,000 are
    500 of each class.
    """
    labels = np.asarray(labels)
    if not 0 <= size < max(len(labels), 1):
        raise InvalidValueError(
            f"the validation split must have fewer than {len(labels)} samples, the size of the "
            f"training set, got {size}"
        )
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * size / max(len(labels), 1)
    quota = np.floor(exact).astype(int)
    largest_remainders = np.argsort(quota - exact, kind="stable")[: size - quota.sum()]
    quota[largest_remainders] += 1
    held = np.zeros(len(labels), bool)
    random = np.random.Generator(np.random.Philox(key=[seed, 0x5B117]))
    for label, take in zip(classes, quota, strict=True):
        held[random.permutation(np.flatnonzero(labels == label))[:take]] = True
    return held
