"""The result that the command of a trial reports: `result.json` in the folder {out}."""

import math
import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsFloat

from thresher.errors import InvalidValueError, NotFoundError
from thresher.options import LARGEST_INT
from thresher.paths import RunPaths, as_path, read_json, write_json

POINTS = ("accuracy", "validation_accuracy")
"""Metrics that result.json holds as shares of 1 and a report shows in points (percent)."""
TO_TARGET = ("time_to_target", "steps_to_target")
"""Metrics that a run has only if it reaches its target; the others are censored at their end."""


def report_result(out: Path | str, **metrics: SupportsFloat) -> Path:
    """Report the result of a run to the study that started it.

    Writes `result.json` into the folder `out`, atomically. Call it once, at the end of a training
    script that a study runs as its `command`, in one of its processes: the last call counts. A
    program in another language writes the same file: a JSON object of numbers.

    Args:
        out: The folder that the study passes as {out}.
        **metrics: Numbers by name, also of numpy or torch. The metric of the study is required.
            `accuracy` and `validation_accuracy` are shares, from 0 to 1.

    Returns:
        The path of `result.json`.

    Raises:
        InvalidValueError: A metric is not a finite number, or an accuracy is not in [0, 1].

    Example:
        >>> from thresher import report_result
        >>> report_result("run", accuracy=0.931, loss=0.24).read_text()
        '{\\n  "accuracy": 0.931,\\n  "loss": 0.24\\n}\\n'
    """
    file = RunPaths(as_path(out, "out")).result
    plain = {name: _plain(value) for name, value in metrics.items()}
    for name, value in plain.items():
        check_metric_value(name, value)
    write_json(file, plain)
    return file


def read_reported(out: Path, metrics: Sequence[str]) -> dict[str, float]:
    """Return the numbers that a command reported in its folder `out`.

    Values that are not finite numbers are left out, unless they are among `metrics`, which must be
    there.

    Raises:
        NotFoundError: There is no result.
        InvalidValueError: It is not a JSON object, or a metric is missing or has a wrong value.
    """
    file = RunPaths(out).result
    if not file.is_file():
        raise NotFoundError("the command wrote no result.json into {out}")
    values = read_json(file, "result")
    if not isinstance(values, dict):
        raise InvalidValueError(f"{file} must hold a JSON object, got {_short(values)}")
    for name in metrics:
        # A run that does not reach its target has no time.
        if name in TO_TARGET and values.get(name) is None:
            continue
        if name not in values:
            raise InvalidValueError(
                f'{file} does not hold "{name}"', f"it holds {', '.join(values) or 'nothing'}"
            )
        check_metric_value(name, values[name])
    found = {name: value for name, value in values.items() if is_finite(value)}
    for name in found.keys() & set(POINTS):
        check_metric_value(name, found[name])
    return found


def check_metric_value(name: str, value: Any) -> None:
    """Raise InvalidValueError unless `value` is a finite number, for an accuracy from 0 to 1."""
    if not is_finite(value):
        raise InvalidValueError(f"{name} must be a finite number, got {_short(value)}")
    if name in POINTS and not 0 <= value <= 1:
        raise InvalidValueError(f"{name} must be a share in [0, 1], got {_short(value)}")


def _plain(value: Any) -> Any:
    """Convert a number of numpy or torch to Python's; leave the rest to the check."""
    if isinstance(value, bool | str | bytes) or "bool" in str(getattr(value, "dtype", "")):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def is_finite(value: Any) -> bool:
    """Return whether `value` is a finite number, and no larger than an integer may be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST_INT if isinstance(value, int) else math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
