"""The validation split: stratified, seeded, taken from the training samples."""

import numpy as np

from thresher.errors import ThresherError


def hold_out(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Which of the samples become validation: (n,) bool with exactly `size` True.

    Every class gives its share (largest remainders settle the rounding), so that CIFAR-10's
    50,000 with size 5,000 give 500 of each class. It depends on `labels`, `size`, `seed` alone.
    """
    labels = np.asarray(labels)
    if not 0 <= size < max(len(labels), 1):
        raise ThresherError(
            f"a validation split of {size} cannot be taken from {len(labels)} training samples",
            "choose a smaller one",
        )
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * size / max(len(labels), 1)
    quota = np.floor(exact).astype(int)
    rest = np.argsort(quota - exact, kind="stable")[: size - quota.sum()]
    quota[rest] += 1
    held = np.zeros(len(labels), bool)
    random = np.random.Generator(np.random.Philox(key=[seed, 0x5B117]))
    for label, take in zip(classes, quota, strict=True):
        held[random.permutation(np.flatnonzero(labels == label))[:take]] = True
    return held
