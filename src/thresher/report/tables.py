"""A study's numbers as tables: Parquet for machines, HTML for people."""

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from thresher.paths import atomic_file
from thresher.study.analysis import Analysis, plain


def write_parquet(analysis: Analysis, path: Path) -> None:
    """Every row of the study, a column per axis and per number; mixed types become texts."""
    rows = [plain(row) for row in analysis.rows]
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
    """A table that scrolls sideways where the screen is narrow; `numbers` are right-aligned.

    With `wrap`, long texts are broken instead. A cell given as `Markup` is taken as it is; all
    else is escaped.
    """

    def cell(tag: str, column: int, value: Any) -> str:
        shown = value.text if isinstance(value, Markup) else html.escape(str(value))
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


class Markup:
    """HTML that is already safe."""

    def __init__(self, text: str) -> None:
        self.text = text


def verdict_table(analysis: Analysis) -> str:
    """Cell by cell: difference, interval, p-value, verdict."""
    from thresher.study.analysis import spoken_cell

    rows = []
    for v in analysis.verdicts:
        place = spoken_cell(v["cell"]) if v["cell"] else "over all cells"
        rows.append(
            [
                place,
                f"{v['arm']} − {v['baseline']}",
                Markup(badge(v["verdict"])),
                number(v["difference"], signed=True),
                interval(v["low"], v["high"], signed=True),
                p_value(v["p_holm"]),
                v["n"],
                v["seeds_needed"] if v["seeds_needed"] is not None else "–",
            ]
        )
    heads = ["where", "compared", "verdict", f"mean {analysis.unit}".strip(), "95 % interval"]
    heads += ["p (Holm)", "seeds", "seeds needed"]
    return html_table(heads, rows, numbers=(3, 4, 5, 6, 7))


def cell_table(analysis: Analysis) -> str:
    """A row per cell: mean, interval, runs."""
    axes = [a for a in analysis.study.definition.axes if a not in analysis.study.definition.tune]
    tuned = bool(analysis.choices)
    rows = []
    for cell in analysis.cells:
        chosen = cell.get("chosen") or {}
        notes = [f"{cell['diverged']} diverged"] if cell["diverged"] else []
        notes += [f"{cell['missing']} missing"] if cell["missing"] else []
        rows.append(
            [
                *(value(cell[axis]) for axis in axes),
                *([", ".join(f"{k} {v}" for k, v in chosen.items()) or "undecided"] * tuned),
                number(cell["mean"]),
                interval(cell["low"], cell["high"]),
                cell["n"],
                number(cell["seconds"], digits=1),
                ", ".join(notes),
            ]
        )
    label = f"{analysis.metric.replace('_', ' ')} ({analysis.unit})".replace(" ()", "")
    heads = [*(axis.replace("_", " ") for axis in axes), *(["chosen on validation"] * tuned)]
    first = len(heads)
    heads += [label, "95 % interval", "runs", "s per run", ""]
    return html_table(heads, rows, numbers=(first, first + 1, first + 2, first + 3))


def choice_table(analysis: Analysis) -> str:
    """What tuning saw on the validation split, candidate by candidate."""
    tune = list(analysis.study.definition.tune)
    free = [a for a in analysis.study.definition.axes if a not in tune]
    rows = []
    for choice in analysis.choices:
        for candidate in choice.candidates:
            score = candidate["validation_accuracy"]
            taken = choice.chosen == {axis: candidate[axis] for axis in tune}
            rows.append(
                [
                    *(value(choice.cell[axis]) for axis in free),
                    *(value(candidate[axis]) for axis in tune),
                    number(None if score is None else 100 * score),
                    "chosen" if taken else "",
                ]
            )
    heads = [a.replace("_", " ") for a in [*free, *tune]] + ["validation (points)", ""]
    return html_table(heads, rows, numbers=(len(heads) - 2,))


def trial_table(analysis: Analysis) -> str:
    """A row per trial."""
    axes = analysis.study.definition.axes
    rows = []
    for row in analysis.rows:
        rows.append(
            [
                *(value(row[axis]) for axis in axes),
                row["seed"],
                row["error"] or row["status"] or row["state"],
                number(row["accuracy"]),
                number(row["validation_accuracy"]),
                number(row["loss"], digits=3),
                number(row["seconds"], digits=1),
            ]
        )
    heads = [*(axis.replace("_", " ") for axis in axes), "seed", "state", "test", "validation"]
    heads += ["loss", "s"]
    first = len(axes) + 2
    return html_table(heads, rows, numbers=range(first, first + 4))


def badge(word: str) -> str:
    return f'<span class="badge {word.split()[0]}">{html.escape(word)}</span>'


def number(x: float | None, digits: int = 2, signed: bool = False) -> str:
    if x is None or not math.isfinite(x):
        return "–"
    return f"{x:+,.{digits}f}" if signed else f"{x:,.{digits}f}"


def interval(low: float | None, high: float | None, signed: bool = False) -> str:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    return f"{number(low, signed=signed)} … {number(high, signed=signed)}"


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def value(v: Any) -> str:
    return f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v)
