"""Read runs that were made elsewhere, one row of a CSV file each, as trials to analyse."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.csv_table import CsvTable, read_csv_table
from thresher.errors import InvalidValueError, nearest
from thresher.options import LARGEST_INT
from thresher.study.analysis import Analysis
from thresher.study.reading import RESERVED
from thresher.study.reported import POINTS
from thresher.study.results import Trial

SEED = "seed"
_NAME = re.compile(r"_|^[+-]?0\d")


def read_runs(file: Path | str, metric: str, axes: Sequence[str] = ()) -> list[Trial]:
    """Read the runs of a CSV file, for `analyse`.

    The file has a header with the columns `seed` and `metric`; the others are axes. Accuracies that
    are all at most 1 are shares and become points.

    Args:
        file: Comma-, semicolon- or tab-separated text in UTF-8.
        metric: Column of the number to compare.
        axes: Columns that are axes; default: all but `seed` and `metric`.

    Raises:
        NotFoundError: The file does not exist.
        InvalidValueError: The file is not CSV, a column is missing, a value is not a number,
            accuracies are not in [0, 100] or partly shares and partly in percent, two rows are the
            same run, or there is only one seed.
    """
    table = read_csv_table(Path(file))
    head, rows = table.head, table.rows
    for name in (SEED, metric, *axes):
        if name not in head:
            hint = nearest(name, head)
            if name == SEED and not hint.startswith("did you mean"):
                hint = "add one; runs with the same seed are compared with each other"
            raise InvalidValueError(f'{file} has no column "{name}"', hint)
    # A column without a name numbers the rows, as pandas does.
    chosen = list(axes) or [name for name in head if name not in ("", SEED, metric)]
    for name in chosen:
        if name in RESERVED or name in (SEED, metric):
            fix = "name the columns that are axes with `axes`"
            raise InvalidValueError(f'column "{name}" of {file} cannot be an axis', fix)
    columns = {name: _axis(file, table, name) for name in chosen}
    numbers = _numbers(file, table, metric)
    trials: list[Trial] = []
    lines: dict[tuple[Any, ...], int] = {}
    for n, (line, row, number) in enumerate(zip(table.lines, rows, numbers, strict=True)):
        cell = {name: columns[name][n] for name in chosen}
        seed = _seed(file, line, row[head.index(SEED)])
        first = lines.setdefault((seed, *cell.values()), line)
        if first != line:
            raise InvalidValueError(
                f"lines {first} and {line} of {file} are the same run: seed {seed} and equal axes",
                "remove one, or give them different seeds",
            )
        trials.append(Trial(cell=cell, seed=seed, value=number, name=f"line {line}"))
    if len({trial.seed for trial in trials}) < 2:
        raise InvalidValueError(
            f"{file} has {'one seed' if trials else 'no runs'}, so nothing can be compared",
            "add runs with other seeds",
        )
    return trials


def check_paired(file: Path | str, analysis: Analysis) -> None:
    """Refuse runs of which no two differ in the compared axis only, so that nothing is compared."""
    axis = analysis.compared
    if axis is None or len({trial.cell[axis] for trial in analysis.trials}) < 2:
        what = f'column "{axis}" of {file} has one value' if axis else f"{file} has no two arms"
        raise InvalidValueError(f"{what}, so nothing can be compared", "choose another `compare`")
    if any(comparison.n > 1 for comparison in analysis.verdicts):
        return
    others = [name for name in analysis.axes if name != axis]
    raise InvalidValueError(
        f"no two seeds of {file} have runs that differ in {axis} only, so nothing can be compared"
        + (f"; {', '.join(others)} {_count_as(others)}, too" if others else ""),
        "name the columns that are axes with `axes`" if others else "add runs",
    )


def _count_as(names: Sequence[str]) -> str:
    return "counts as an axis" if len(names) == 1 else "count as axes"


def _axis(file: Path | str, table: CsvTable, name: str) -> list[Any]:
    """Return the values of an axis: integers or numbers if all are, otherwise text.

    Names such as 16_8 and 007 are text, although Python reads the first as 168.
    """
    texts = [row[table.head.index(name)] for row in table.rows]
    for line, text in zip(table.lines, texts, strict=True):
        if not text:
            raise InvalidValueError(f"line {line} of {file} has no {name}")
    for kind in () if any(map(_NAME.search, texts)) else (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        if all(math.isfinite(value) and abs(value) <= LARGEST_INT for value in values):
            return values
    return texts


def _numbers(file: Path | str, table: CsvTable, metric: str) -> list[float]:
    """Return the values of the metric; accuracies in percent."""
    numbers = []
    for line, row in zip(table.lines, table.rows, strict=True):
        text = row[table.head.index(metric)]
        try:
            numbers.append(float(text) if "_" not in text else math.nan)
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            what = f'line {line} of {file}: {metric} must be a number, got "{text}"'
            raise InvalidValueError(what)
    return _points(file, table, metric, numbers) if metric in POINTS else numbers


def _points(
    file: Path | str, table: CsvTable, metric: str, numbers: Sequence[float]
) -> list[float]:
    """Return accuracies, all shares or all in percent, in percent; 0 is the same in both."""
    for line, number in zip(table.lines, numbers, strict=True):
        if not 0 <= number <= 100:
            what = f"line {line} of {file}: {metric} must be in [0, 100], got {number:g}"
            raise InvalidValueError(what, "write shares in [0, 1], or percent")
    share = next((n for n, number in enumerate(numbers) if 0 < number <= 1), None)
    percent = next((n for n, number in enumerate(numbers) if number > 1), None)
    if share is not None and percent is not None:
        raise InvalidValueError(
            f"line {table.lines[share]} of {file}: {metric} {numbers[share]:g} is a share, but "
            f"{numbers[percent]:g} in line {table.lines[percent]} is in percent",
            "write all of them as shares in [0, 1]",
        )
    return [100 * number for number in numbers] if percent is None else list(numbers)


def _seed(file: Path | str, line: int, text: str) -> int:
    try:
        # Other programs write the seeds of a table in which one was missing as 0.0.
        return int(text.removesuffix(".0") if "_" not in text else "")
    except ValueError:
        what = f'line {line} of {file}: seed must be an integer, got "{text}"'
        raise InvalidValueError(what) from None
