"""Tables of a study: Parquet for programs, HTML for the report."""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thresher.paths import atomic_file
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.definition import METRICS
from thresher.study.reported import POINTS, TO_TARGET
from thresher.study.results import to_json_values
from thresher.study.statistics import decimals
from thresher.study.summaries import CellSummary, describe_cell, format_value


def write_parquet(analysis: Analysis, path: Path) -> None:
    """Write one row per trial with a column per axis and number; mixed types become text."""
    rows = [to_json_values(trial.to_dict()) for trial in analysis.trials]
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    with atomic_file(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        values = [None if value is None else float(value) for value in values]
    elif len(kinds) > 1 or kinds & {list, dict, tuple}:
        values = [None if value is None else str(value) for value in values]
    return pa.array(values)


def html_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Any]],
    numbers: Sequence[int] = (),
    wrap: bool = False,
) -> str:
    """Return an HTML table that scrolls sideways on a narrow screen, or wraps long text.

    Everything except `Markup` is escaped. `numbers` are the columns to align right.
    """

    def cell(tag: str, column: int, value: Any) -> str:
        shown = value if isinstance(value, Markup) else html.escape(str(value))
        kind = ' class="n"' if column in numbers else ""
        return f"<{tag}{kind}>{shown}</{tag}>"

    head = "".join(cell("th", n, name) for n, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell("td", n, value) for n, value in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll{" wrap" if wrap else ""}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


class Markup(str):
    """HTML that is already safe."""


def verdict_table(analysis: Analysis) -> str:
    """Return a row per comparison: difference, interval, p-value, verdict."""
    families = any(c.primary is not None for c in analysis.verdicts)
    size = analysis.margin
    digits = [decimals(c.difference, c.low, c.high, size=size) for c in analysis.verdicts]
    rows = [
        [
            describe_cell(c.cell) or "all settings",
            f"{c.arm} − {c.baseline}",
            *(["primary" if c.primary else "exploratory"] * families),
            badge(c.verdict),
            number(c.difference, places, signed=True),
            interval(c.low, c.high, places, signed=True),
            _p(c.p_holm),
            f"{c.n} draws" if c.draws else c.n,
            f"{c.seeds_needed:,}{' draws' * bool(c.draws)}" if c.seeds_needed is not None else "–",
            interval(c.adjusted_low, c.adjusted_high, places, signed=True),
            _p(c.p),
            number(c.sd, 1 + places),
            number(c.df, digits=1),
            _pooled(c),
        ]
        for c, places in zip(analysis.verdicts, digits, strict=True)
    ]
    heads = ["setting", "compared", *(["family"] * families), "verdict"]
    first = len(heads)
    difference = f"mean difference ({analysis.unit})".replace(" ()", "")
    heads += [difference, "95 % interval", "p (Holm)", "seeds", "seeds needed"]
    # What the verdict is computed from stands last: a narrow screen shows the first columns.
    heads += ["adjusted interval", "p", "sd", "degrees of freedom", "sd from"]
    return html_table(heads, rows, numbers=range(first, len(heads)))


def _pooled(comparison: ArmComparison) -> str:
    """Return which runs the standard deviation is estimated from."""
    cells, arms = comparison.pooled_cells, comparison.pooled_arms
    if not arms:
        return "differences"
    return f"{arms} arms × {cells} setting{'s' if cells != 1 else ''}"


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def cell_table(analysis: Analysis) -> str:
    """Return a row per cell: mean, interval, number of runs."""
    tuned = bool(analysis.choices)
    rows = []
    for c in analysis.cells:
        chosen = c.chosen or {}
        notes = [f"{c.diverged} diverged"] if c.diverged else []
        notes += [f"{c.missing} missing"] if c.missing else []
        if analysis.metric in TO_TARGET and c.censored:
            notes.append(f"{len(c.censored)} left out: target not reached")
        rows.append(
            [
                *(format_value(c.cell[axis]) for axis in analysis.axes),
                *([", ".join(f"{k} {v}" for k, v in chosen.items()) or "undecided"] * tuned),
                number(c.mean, c.digits),
                interval(*shown_interval(c, analysis.metric), c.digits),
                c.n,
                number(c.seconds, digits=1),
                ", ".join(notes),
            ]
        )
    heads = [*_headings(analysis.axes), *(["chosen on validation"] * tuned)]
    first = len(heads)
    heads += [analysis.label(), "95 % interval", "runs", "seconds per run", "notes"]
    return html_table(*_filled(heads, rows), numbers=range(first, first + 4))


def choice_table(analysis: Analysis) -> str:
    """Return a row per tuning candidate with its validation accuracy."""
    rows = [
        [
            *(format_value(choice.cell[axis]) for axis in analysis.axes),
            *(format_value(candidate.values[axis]) for axis in analysis.tuned),
            number(candidate.validation_accuracy, scale=100),
            "chosen" if choice.chosen == candidate.values else "",
        ]
        for choice in analysis.choices
        for candidate in choice.candidates
    ]
    heads = [*_headings([*analysis.axes, *analysis.tuned]), "validation accuracy (%)", ""]
    return html_table(heads, rows, numbers=(len(heads) - 2,))


def trial_table(analysis: Analysis) -> str:
    """Return a row per trial."""
    axes = [*analysis.axes, *analysis.tuned]
    own = [] if analysis.metric in METRICS else [analysis.metric.replace("_", " ")]
    rows = [
        [
            *(format_value(trial.cell[axis]) for axis in axes),
            trial.seed,
            trial.error or trial.status or trial.state,
            *([number(trial.value, 2 + _decimals(trial.value))] * len(own)),
            number(trial.accuracy),
            number(trial.validation_accuracy),
            number(trial.loss, 1 + _decimals(trial.loss)),
            number(trial.seconds, digits=1),
        ]
        for trial in analysis.trials
    ]
    heads = [*_headings(axes), "seed", "state", *own]
    heads += ["test accuracy (%)", "validation accuracy (%)", "test loss", "seconds"]
    heads, rows = _filled(heads, rows)
    return html_table(heads, rows, numbers=range(len(axes) + 2, len(heads)))


def _filled(heads: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Leave out columns without any value."""
    keep = [n for n in range(len(heads)) if any(row[n] not in ("", "–") for row in rows)]
    return [heads[n] for n in keep], [[row[n] for n in keep] for row in rows]


def _decimals(value: float | None) -> int:
    return decimals(value or 0.0, size=value or 0.0)


def _headings(axes: Sequence[str]) -> list[str]:
    return [axis.replace("_", " ") for axis in axes]


def badge(word: str) -> Markup:
    """Return a verdict as coloured HTML text."""
    return Markup(f'<span class="badge {word.split()[0]}">{html.escape(word)}</span>')


def shown_interval(cell: CellSummary, metric: str) -> tuple[float, float]:
    """Return the interval of a cell as it is shown: that of an accuracy ends at 0 and 100 %."""
    low, high = cell.low, cell.high
    if metric not in POINTS or not (math.isfinite(low) and math.isfinite(high)):
        return low, high
    return max(low, 0.0), min(high, 100.0)


def number(x: float | None, digits: int = 2, signed: bool = False, scale: float = 1) -> str:
    if x is None or not math.isfinite(x):
        return "–"
    x = round(scale * x, digits) + 0.0  # a tiny negative number is 0, not -0
    return f"{x:{'+' if signed else ''},.{digits}f}"


def interval(low: float, high: float, digits: int, signed: bool = False) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"{number(low, digits, signed)} … {number(high, digits, signed)}"
