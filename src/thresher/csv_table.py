"""Read a table that a person or a spreadsheet wrote: comma-, semicolon- or tab-separated text."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from thresher.errors import InvalidValueError, NotFoundError
from thresher.read_errors import unreadable

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class CsvTable:
    """The cells of a file, without the spaces around them."""

    head: list[str]
    """Column names, each of them once; unnamed columns are empty."""
    rows: list[list[str]]
    """One list per row, as long as `head`. Blank lines are left out."""
    lines: list[int]
    """Line number of each row in the file, from 1."""


def read_csv_table(file: Path, lower: bool = False, pad: bool = False) -> CsvTable:
    """Read a table in UTF-8 with a header; the separator is that of the header, or a tab in .tsv.

    Args:
        file: The file.
        lower: Return column names in lower case.
        pad: Fill rows that are shorter than the header. Longer ones are always refused: their
            cells would move to other columns, as those of numbers with a decimal comma.

    Raises:
        NotFoundError: The file does not exist.
        InvalidValueError: The file is not a table.
    """
    try:
        with open(file, encoding="utf-8-sig", newline="") as opened:
            text = opened.read()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{file} not found", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        wrong = InvalidValueError(f"{file} is not a CSV file", "give a text file in UTF-8")
        raise unreadable(file, error) or wrong from None
    delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
    if file.suffix.lower() == ".tsv":
        delimiter = "\t"
    try:
        read = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        numbered = [([value.strip() for value in row], read.line_num) for row in read]
    except csv.Error as error:
        raise InvalidValueError(f"{file} is not a CSV file: {error}") from None
    if not numbered or not any(numbered[0][0]):
        raise InvalidValueError(f"{file} is not a CSV file: it has no header")
    head = [name.lower() if lower else name for name in numbered[0][0]]
    for name in filter(None, head):
        if head.count(name) > 1:
            raise InvalidValueError(f'{file} has two columns "{name}"', "rename one")
    filled = [(row, line) for row, line in numbered[1:] if any(row)]
    rows = [_fit(file, line, row, len(head), pad) for row, line in filled]
    return CsvTable(head, rows, [line for _, line in filled])


def _fit(file: Path, line: int, row: list[str], width: int, pad: bool) -> list[str]:
    """Return a row as long as the header; empty cells beyond it do not count."""
    while len(row) > width and not row[-1]:
        row = row[:-1]
    if len(row) > width or (len(row) < width and not pad):
        values = f"{len(row)} {'value' if len(row) == 1 else 'values'}"
        raise InvalidValueError(
            f"line {line} of {file} has {values}, but the header has {width}",
            "write decimals with a point, and text that holds a separator in quotes"
            if len(row) > width
            else "",
        )
    return row + [""] * (width - len(row))
