"""Read runs that were made elsewhere, one row of a CSV file each, as trials to analyse."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError, NotFoundError, nearest
from thresher.options import LARGEST_INT
from thresher.study.analysis import Analysis
from thresher.study.reading import RESERVED
from thresher.study.reported import POINTS
from thresher.study.results import Trial

SEED = "seed"
DELIMITERS = ",;\t"


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
            accuracies are partly shares and partly in percent, two rows are the same run, or there
            is only one seed.
    """
    head, rows = _read(Path(file))
    for name in (SEED, metric, *axes):
        if name not in head:
            raise InvalidValueError(f'{file} has no column "{name}"', nearest(name, head))
    chosen = list(axes) or [name for name in head if name not in (SEED, metric)]
    for name in chosen:
        if name in RESERVED or name in (SEED, metric):
            fix = "name the columns that are axes with `axes`"
            raise InvalidValueError(f'column "{name}" of {file} cannot be an axis', fix)
    columns = {name: _axis(file, name, [row[head.index(name)] for row in rows]) for name in chosen}
    numbers = [_number(file, n, metric, row[head.index(metric)]) for n, row in enumerate(rows, 2)]
    if metric in POINTS:
        numbers = _points(file, metric, numbers)
    trials: list[Trial] = []
    lines: dict[tuple[Any, ...], int] = {}
    for line, (row, number) in enumerate(zip(rows, numbers, strict=True), 2):
        cell = {name: columns[name][line - 2] for name in chosen}
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
        + (f"; {', '.join(others)} count as axes, too" if others else ""),
        "name the columns that are axes with `axes`" if others else "add runs",
    )


def _read(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows, each as long as the header."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            text = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{file} not found", "check the path") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise InvalidValueError(f"{file} is not a CSV file", "give a text file in UTF-8") from None
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [[value.strip() for value in row] for row in read]
    except csv.Error as error:
        raise InvalidValueError(f"{file} is not a CSV file: {error}") from None
    if not rows or not any(rows[0]):
        raise InvalidValueError(f"{file} is not a CSV file: it has no header")
    head = rows[0]
    for name in head:
        if head.count(name) > 1:
            raise InvalidValueError(f'{file} has two columns "{name}"', "rename one")
    while rows and not any(rows[-1]):
        rows.pop()
    for line, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise InvalidValueError(
                f"line {line} of {file} has {len(row)} values, but the header has {len(head)}"
            )
    return head, rows[1:]


def _axis(file: Path | str, name: str, texts: list[str]) -> list[Any]:
    """Return the values of an axis: integers or numbers if all are, otherwise text."""
    for line, text in enumerate(texts, 2):
        if not text:
            raise InvalidValueError(f"line {line} of {file} has no {name}")
    for kind in (int, float):
        try:
            values = [kind(text) for text in texts]
        except ValueError:
            continue
        if all(math.isfinite(value) and abs(value) <= LARGEST_INT for value in values):
            return values
    return texts


def _number(file: Path | str, line: int, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidValueError(f'line {line} of {file}: {name} must be a number, got "{text}"')
    return number


def _points(file: Path | str, name: str, numbers: list[float]) -> list[float]:
    """Return accuracies, all shares or all in percent, in percent; 0 is the same in both."""
    share = next((n for n, number in enumerate(numbers) if 0 < number <= 1), None)
    percent = next((n for n, number in enumerate(numbers) if number > 1), None)
    if share is not None and percent is not None:
        raise InvalidValueError(
            f"line {share + 2} of {file}: {name} {numbers[share]:g} is a share, but "
            f"{numbers[percent]:g} in line {percent + 2} is in percent",
            "write all of them as shares in [0, 1]",
        )
    shares = all(0 <= number <= 1 for number in numbers)
    return [100 * number for number in numbers] if shares else numbers


def _seed(file: Path | str, line: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        what = f'line {line} of {file}: seed must be an integer, got "{text}"'
        raise InvalidValueError(what) from None
