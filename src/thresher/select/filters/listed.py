"""Samples that somebody listed: another tool, or a person."""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.csv_table import read_csv_table
from thresher.data.ids import read_id_list, rows_by_id
from thresher.errors import InvalidValueError, NotFoundError
from thresher.options import option
from thresher.read_errors import unreadable
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs

TABLES = (".csv", ".tsv", ".parquet")
ANSWERS = {"true": True, "1": True, "false": False, "0": False}
"""What a column `keep` says, as in the table of a selection."""


@dataclass(kw_only=True)
class ListFilter(Filter):
    """Drop the samples of a list, such as one that another tool wrote.

    The list is a text file with an id per line, or a table (CSV, TSV or Parquet) with a column
    `id`; its columns `score` and `reason`, if it has them, are shown on the page. Ids of other
    samples, such as test images, are ignored with a warning; if less than half of the ids are
    training samples, the list is refused as one of other data. Costs nothing but reading.

    Examples:
        >>> ListFilter(ids=("2", "0")).fit(None, [0, 0, 1, 1]).keep_.tolist()
        [False, True, False, True]
    """

    name: ClassVar[str] = "list"
    hardness: ClassVar[bool] = True
    """Its scores are what the other tool says."""

    file: Path | None = option(None, positional=True)
    """Text file with an id per line, or a table (.csv, .tsv, .parquet) with a column id."""
    ids: tuple[str, ...] = ()
    """The ids, instead of a file."""
    keep: bool = False
    """Keep the listed samples and drop all others."""

    def _fit(self, inputs: FilterInputs) -> None:
        entries = self._entries(set(inputs.ids))
        listed = list(entries)
        rows = rows_by_id(listed, inputs.ids)
        there = int((rows >= 0).sum())
        if 2 * there < len(listed):
            stranger = listed[int((rows < 0).argmax())]
            raise InvalidValueError(
                f"{len(listed) - there:,} of {len(listed):,} listed ids are not training samples "
                f'of this data, such as "{stranger}"; its ids look like "{inputs.ids[0]}"',
                "give ids of the pack",
                "ids" if self.file is None else "file",
            )
        if there < len(listed):
            self.warnings_.append(
                f"{len(listed) - there:,} of {len(listed):,} listed ids are not training samples "
                "and are ignored"
            )
        marked, self.score_ = np.zeros(len(inputs), bool), np.zeros(len(inputs), np.float32)
        self.reason_ = ["not listed" if self.keep else ""] * len(inputs)
        for (score, reason), row in zip(entries.values(), rows.tolist(), strict=True):
            if row >= 0:
                marked[row], self.score_[row] = True, score
                self.reason_[row] = "" if self.keep else reason
        if marked.all() and not self.keep:
            raise InvalidValueError(
                "the list names every training sample, so that none would be kept",
                "list only those to drop",
                "ids" if self.file is None else "file",
            )
        self.keep_ = marked if self.keep else ~marked
        self.report_.update(listed=len(listed), missing=len(listed) - there)

    def _entries(self, known: Container[str]) -> dict[str, tuple[float, str]]:
        """Return score and reason of each listed id; spaces count only around `known` ids."""
        if (self.file is None) == (not self.ids):
            raise InvalidValueError("name a file with ids or give `ids`, one of both")
        if self.file is None:
            return dict.fromkeys(self.ids, (1.0, "listed"))
        if not self.file.is_file():
            raise NotFoundError(f"the list {self.file} does not exist", "check the path")
        if self.file.suffix.lower() in TABLES:
            entries = dict(_read_rows(self.file, self.keep))
        else:
            lines = read_id_list(self.file)
            ids = (line if line in known else line.strip() for line in lines)
            entries = dict.fromkeys(filter(None, ids), (1.0, "listed"))
        if not entries:
            raise InvalidValueError(f"the list {self.file} is empty", "", "file")
        return entries


def _read_rows(file: Path, keep: bool) -> Iterable[tuple[str, tuple[float, str]]]:
    """Yield id, score and reason of each row of a table of samples to keep, or to drop."""
    for number, row in enumerate(_table(file), 1):
        if row.get("id") in (None, ""):  # the number 0 is an id
            raise InvalidValueError(f"row {number} of {file} has no id", "", "file")
        if ANSWERS.get(str(row.get("keep")).lower(), keep) != keep:
            raise InvalidValueError(
                f"row {number} of {file} has keep = {row['keep']}, but every listed sample would "
                f"be {'kept' if keep else 'dropped'}",
                "list only the others, or combine selections with `union`",
                "file",
            )
        try:
            score = 1.0 if row.get("score") in (None, "") else float(str(row["score"]))
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            what = f"the score in row {number} of {file} must be a number, got {row['score']}"
            raise InvalidValueError(what, "", "file")
        yield str(row["id"]), (score, str(row.get("reason") or "listed"))


def _table(file: Path) -> list[Mapping[str, object]]:
    """Return the rows of a table that has a column id."""
    if file.suffix.lower() == ".parquet":
        try:
            rows: list[Mapping[str, object]] = pq.read_table(file).to_pylist()
        except (pa.ArrowException, OSError) as error:
            wrong = InvalidValueError(f"{file} is not a Parquet file: {error}", "", "file")
            raise unreadable(file, error) or wrong from None
    else:
        table = read_csv_table(file, lower=True, pad=True)
        rows = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    if rows and "id" not in rows[0]:
        names = ", ".join(map(str, rows[0]))
        raise InvalidValueError(f"{file} has no column id, but {names}", "", "file")
    return rows
