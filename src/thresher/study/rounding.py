"""The step to which numbers were rounded before they were reported."""

from collections.abc import Iterable

MOST_DECIMALS = 6
"""Numbers with more decimals are taken to be exact."""


def written_step(values: Iterable[float]) -> float:
    """Return the unit of the last decimal that any of the values has; 0 if they are exact.

    Example:
        >>> written_step([91.2, 90.0, 91.25])
        0.01
        >>> written_step([100 / 3, 90.0])
        0.0
    """
    numbers = list(values)
    for decimals in range(MOST_DECIMALS + 1):
        # A share times 100 may be off in its last bits.
        if all(abs(round(number, decimals) - number) <= 1e-12 * abs(number) for number in numbers):
            return float(10**-decimals) if numbers else 0.0
    return 0.0
