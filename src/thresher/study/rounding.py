"""The step to which numbers were rounded before they were reported."""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

MOST_DECIMALS = 6
"""Numbers with more decimals are taken to be exact."""
MOST_IMAGES = 100_000
"""Images of the largest test set that accuracies are compared with."""


def written_step(values: Iterable[float]) -> float:
    """Return the unit of the last decimal that any of the values has; 0 if they are exact.

    Example:
        >>> written_step([91.2, 90.0, 91.25])
        0.01
        >>> written_step([100 / 3, 90.0])
        0.0
    """
    numbers = list(values)
    slack = _slack(numbers)
    largest = max(map(abs, numbers), default=0.0)
    for decimals in range(MOST_DECIMALS + 1):
        if 10**-decimals < 40 * slack * largest:  # nearly any number would pass
            break
        if all(abs(round(number, decimals) - number) <= slack * abs(number) for number in numbers):
            return float(10**-decimals) if numbers else 0.0
    return 0.0


def image_step(points: Sequence[float]) -> float:
    """Return what an image is worth, of the smallest test set on which all accuracies are possible.

    Accuracies are in percent. 0 if there is no such set of up to `MOST_IMAGES` images.

    Example:
        >>> image_step([100 * 330 / 360, 100 * 331 / 360]) == 100 / 360
        True
    """
    shares, slack = {number / 100 for number in points}, _slack(points)
    if not all(_is_fraction(share, 2 * slack) for share in shares):
        return 0.0  # known without trying every number of images
    counts = np.arange(1, MOST_IMAGES + 1)
    for share in shares:
        correct = share * counts
        counts = counts[np.abs(correct - np.rint(correct)) <= slack * np.abs(correct)]
    return 100 / float(counts[0]) if len(points) and len(counts) else 0.0


def _is_fraction(share: float, slack: float) -> bool:
    """Return whether any number of images up to `MOST_IMAGES` can have this share of them."""
    if not math.isfinite(share):
        return False
    nearest = Fraction(share).limit_denominator(MOST_IMAGES)
    return abs(float(nearest) - share) <= slack * abs(share)


def _slack(numbers: Iterable[float]) -> float:
    """Return the share of a number by which its last bits may be off.

    torch's means are of single precision, also in percent: 0.9312 is 0.9312000274658203.
    """
    values = np.array(list(numbers), float)
    with np.errstate(over="ignore"):
        plain, shares = (v.astype(np.float32).astype(float) for v in (values, values / 100))
    single = bool(((plain == values) | (100 * shares == values)).all())
    return 1.2e-7 if single else 1e-12
