"""Samples of separate classes with flipped labels and copies, and what a filter finds of them."""

import numpy as np

from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs

N, CLASSES = 600, 4


def planted(seed: int = 0) -> tuple[FilterInputs, np.ndarray, np.ndarray]:
    """Well separated classes in 16 dimensions, 5 % of labels flipped, 12 copies at the end."""
    random = np.random.default_rng(seed)
    truth = random.integers(0, CLASSES, N)
    x = (random.normal(size=(CLASSES, 16)) * 4)[truth] + random.normal(size=(N, 16))
    copies = np.zeros(N, bool)
    copies[-12:] = True
    x[-12:] = x[:12] * 1.0001
    truth[-12:] = truth[:12]
    flipped = np.zeros(N, bool)
    flipped[random.permutation(np.arange(12, N - 12))[:30]] = True
    labels = np.where(flipped, (truth + random.integers(1, CLASSES, N)) % CLASSES, truth)
    ids = [f"s{n:04}" for n in range(N)]
    names = [f"class{c}" for c in range(CLASSES)]
    samples = FilterInputs(ids=ids, labels=labels, features=x.astype(np.float32), classes=names)
    return samples, flipped, copies


def precision(found: Filter, bad: np.ndarray) -> float:
    return float(bad[~found.keep_].mean())


def recall(found: Filter, bad: np.ndarray) -> float:
    return float((~found.keep_)[bad].mean())
