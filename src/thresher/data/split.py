"""A stratified validation split of the training samples."""

import numpy as np

from thresher.errors import InvalidValueError


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
