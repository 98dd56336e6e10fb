"""The figures of a study: which ones its axes allow, drawn once, as SVG and PNG.

Each is narrow (345 points), so that its text can be read on a phone without zooming. Ink and grid
are two fixed colours, which `inline` turns into CSS variables: one drawing serves light and dark.
"""

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.selection import Selection
from thresher.paths import atomic_file
from thresher.study.analysis import Analysis, preferred_batches, spoken_cell

INK, GRID = "#1f2328", "#d3d8de"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7a6fbe", "#8c8c8c")
NAMED = {"full": 0, "random": 1, "network": 2}
"""The three arms that people know have the same colour in every figure."""
MARKERS = "osD^vPX*"
SIZE = (4.8, 3.3)
MOST_PANELS = 8


@dataclass(frozen=True)
class Drawing:
    """A finished figure: `svg` for the page, `png` for slides."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes

    def save(self, folder: Path) -> None:
        with atomic_file(folder / f"{self.name}.svg") as temporary:
            temporary.write_text(self.svg, encoding="utf-8")
        with atomic_file(folder / f"{self.name}.png") as temporary:
            temporary.write_bytes(self.png)


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Every figure that the study's axes and results allow, the most telling first."""
    drawings: list[Drawing] = []
    drawings += _against(analysis, "batch_size", "batch size", log=True)
    drawings += _preferred(analysis)
    drawings += _against(analysis, "warmup_epochs", "warm-up epochs", log=False)
    drawings += _time_against_workers(analysis)
    if not drawings:
        drawings += _by_compared(analysis)
    drawings += _differences(analysis)
    drawings += _maps(analysis)
    return drawings


def inline(svg: str) -> str:
    """The SVG element alone, its two fixed colours as CSS variables of the page."""
    element = svg[svg.index("<svg") :]
    element = element.replace(INK, "var(--ink)").replace(GRID, "var(--line)")
    # The page decides the size; the viewBox keeps the proportions.
    head, _, body = element.partition(">")
    return re.sub(r' (?:width|height)="[^"]*"', "", head) + ' role="img">' + body


def _figure(
    name: str, title: str, caption: str, paint: Callable[[Any], None], size: Any = SIZE
) -> Drawing:
    import matplotlib
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "axes.grid": True,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.fontsize": 9,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.add_subplot())
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None}, dpi=160)
        figure.savefig(png, format="png", dpi=200, facecolor="white")
    return Drawing(name, title, caption, svg.getvalue(), png.getvalue())


def _look(value: Any, order: int) -> dict[str, Any]:
    number = NAMED.get(str(value), order)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
    }


def _lines(
    axes: Any, cells: Sequence[dict[str, Any]], x: str, series: str, analysis: Analysis
) -> None:
    """A line with 95 % intervals per value of `series`; points of one x stand side by side."""
    values = list(dict.fromkeys(cell[series] for cell in cells)) if series else [None]
    positions = sorted({cell[x] for cell in cells})
    log = all(p > 0 for p in positions) and positions[-1] / positions[0] > 8
    for order, value in enumerate(values):
        mine = [c for c in cells if (not series or c[series] == value) and c["mean"] is not None]
        mine.sort(key=lambda cell: cell[x])
        if not mine:
            continue
        shift = order - (len(values) - 1) / 2
        span = positions[-1] - positions[0] or 1
        xs = [c[x] * 1.03**shift if log else c[x] + 0.008 * shift * span for c in mine]
        means = np.array([c["mean"] for c in mine])
        lows = [c["mean"] - c["low"] if math.isfinite(c["low"]) else 0 for c in mine]
        highs = [c["high"] - c["mean"] if math.isfinite(c["high"]) else 0 for c in mine]
        label = str(value) if series else None
        axes.errorbar(
            xs, means, yerr=[lows, highs], label=label, capsize=2.5, elinewidth=1.1,
            **_look(value, order),
        )  # fmt: skip
    if log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(positions, [_spoken(p) for p in positions])
    if len(positions) > 6:
        axes.tick_params(axis="x", rotation=40)
    axes.set_ylabel(_metric_label(analysis))
    if series and len(values) > 1:
        title = series.replace("_", " ") if series not in ("selection", "arm") else None
        axes.legend(title=title, ncols=min(3, len(values)), loc="best")


def _spoken(value: float) -> str:
    """4,096 and 10.4k: five digits side by side on an axis run into each other."""
    return f"{value:,g}" if value < 10_000 else f"{value / 1000:.3g}k"


def _metric_label(analysis: Analysis) -> str:
    names = {"accuracy": "test accuracy", "loss": "test loss", "time_to_target": "time to target"}
    name = names.get(analysis.metric, analysis.metric.replace("_", " "))
    return f"{name} ({analysis.unit})" if analysis.unit else name


def _against(analysis: Analysis, axis: str, label: str, log: bool) -> list[Drawing]:
    """The metric against one axis of numbers; a panel per combination of what is left."""
    free = _free(analysis)
    if axis not in free or len({cell[axis] for cell in analysis.cells}) < 2:
        return []
    others = [name for name in free if name != axis]
    compared = analysis.study.definition.compared
    series = compared if compared in others else (others[0] if others else "")
    rest = [name for name in others if name != series]
    drawings: list[Drawing] = []
    for place in list(dict.fromkeys(tuple(c[n] for n in rest) for c in analysis.cells)):
        here = dict(zip(rest, place, strict=True))
        cells = [c for c in analysis.cells if all(c[n] == v for n, v in here.items())]
        if all(cell["mean"] is None for cell in cells) or len(drawings) == MOST_PANELS:
            continue

        def paint(axes: Any, cells: list[dict[str, Any]] = cells) -> None:
            _lines(axes, cells, axis, series, analysis)
            axes.set_xlabel(label)

        where = f" at {spoken_cell(here)}" if here else ""
        drawings.append(
            _figure(
                _name(f"{analysis.metric}-{axis}", here),
                f"{_metric_label(analysis).split(' (')[0].capitalize()} against {label}{where}",
                "Mean over seeds; bars are 95 % intervals of the mean.",
                paint,
            )
        )
    return drawings


def _preferred(analysis: Analysis) -> list[Drawing]:
    """Which batch size is best at each learning rate (claim O2)."""
    if "lr" not in _free(analysis):
        return []
    found = preferred_batches(analysis)
    if len({row["lr"] for row in found}) < 2:
        return []
    others = [n for n in _free(analysis) if n not in ("lr", "batch_size")]

    def paint(axes: Any) -> None:
        groups = list(dict.fromkeys(tuple(row[n] for n in others) for row in found))
        for order, group in enumerate(groups):
            mine = [row for row in found if tuple(row[n] for n in others) == group]
            mine.sort(key=lambda row: row["lr"])
            best = np.array([row["preferred"] for row in mine], float)
            low = best - [min(row["as_good"]) for row in mine]
            high = np.array([max(row["as_good"]) for row in mine]) - best
            look = _look(group[0] if group else "", order)
            label = ", ".join(map(str, group)) or None
            rates = [row["lr"] for row in mine]
            axes.errorbar(rates, best, yerr=[low, high], label=label, capsize=2.5, **look)
        rates, sizes = (sorted({row[k] for row in found}) for k in ("lr", "preferred"))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.set_yticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_xlabel("learning rate")
        axes.set_ylabel("preferred batch size")
        if others and len(groups) > 1:
            axes.legend()

    by = found[0]["chosen_by"]
    caption = f"The batch with the best mean on the {by} split; bars span those within the margin."
    return [_figure("preferred-batch", "Preferred batch size per rate", caption, paint)]


def _time_against_workers(analysis: Analysis) -> list[Drawing]:
    """Time to a given loss (or the time of the whole run) against workers (claims S1, S3)."""
    if "workers" not in _free(analysis):
        return []
    reached = any(cell["time_to_target"] is not None for cell in analysis.cells)
    key = "time_to_target" if reached else "seconds"
    label = "time to the target (s)" if reached else "time of a run (s)"
    cells = [cell for cell in analysis.cells if cell[key] is not None]
    counts = sorted({cell["workers"] for cell in cells})
    if len(counts) < 2:
        return []
    compared = analysis.study.definition.compared
    series = compared if compared != "workers" else ""

    def paint(axes: Any) -> None:
        for order, value in enumerate(dict.fromkeys(c[series] if series else None for c in cells)):
            times = [
                [c[key] for c in cells if c["workers"] == n and (not series or c[series] == value)]
                for n in counts
            ]
            known = [(n, sum(t) / len(t)) for n, t in zip(counts, times, strict=True) if t]
            name = str(value) if series else None
            axes.plot(*zip(*known, strict=True), label=name, **_look(value, order))
        first = max(c[key] for c in cells if c["workers"] == counts[0])
        ideal = [first * counts[0] / n for n in counts]
        axes.plot(counts, ideal, color=GRID, linestyle="--", label="ideal", zorder=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.legend()

    caption = "Mean over seeds and cells; runs that never reached the target are left out."
    return [
        _figure(
            "time-workers", f"{label.split(' (')[0]} against workers".capitalize(), caption, paint
        )
    ]


def _by_compared(analysis: Analysis) -> list[Drawing]:
    """The metric by the compared values, every run a dot: for axes that are no numbers."""
    axis = analysis.study.definition.compared
    cells = [cell for cell in analysis.cells if cell["mean"] is not None]
    if not axis or not cells:
        return []

    def paint(axes: Any) -> None:
        names = list(dict.fromkeys(str(cell[axis]) for cell in cells))
        for cell in cells:
            at = names.index(str(cell[axis]))
            look = _look(cell[axis], at)
            values = list(cell["values"].values())
            jitter = 0.08 * (np.arange(len(values)) - (len(values) - 1) / 2) / max(len(values), 1)
            axes.plot(at + jitter, values, "o", color=look["color"], alpha=0.45, markersize=4)
            axes.plot([at - 0.2, at + 0.2], [cell["mean"]] * 2, color=look["color"], linewidth=2)
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.6, len(names) - 0.4)
        axes.set_xlabel(axis.replace("_", " "))
        axes.set_ylabel(_metric_label(analysis))

    title = f"{_metric_label(analysis).split(' (')[0].capitalize()} by {axis.replace('_', ' ')}"
    return [
        _figure(f"{analysis.metric}-{axis}", title, "A dot per run; the line is the mean.", paint)
    ]


def _differences(analysis: Analysis) -> list[Drawing]:
    """Every comparison as a difference with its interval: what the verdicts stand on."""
    rows = [v for v in analysis.verdicts if v["n"] >= 2]
    if not rows:
        return []
    rows = rows[:40]
    colour = {"better": "#009e73", "worse": "#d55e00", "equivalent": "#0072b2"}

    def paint(axes: Any) -> None:
        axes.axvspan(-analysis.margin, analysis.margin, color=GRID, alpha=0.5, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        for at, v in enumerate(reversed(rows)):
            tone = colour.get(v["verdict"], "#8c8c8c")
            axes.plot([v["low"], v["high"]], [at, at], color=tone, linewidth=1.6)
            axes.plot(v["difference"], at, "o", color=tone, markersize=5)
        labels = [
            f"{v['arm']} − {v['baseline']}\n{spoken_cell(v['cell']) or 'over all cells'}"
            for v in reversed(rows)
        ]
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"difference ({analysis.unit or analysis.metric})")

    caption = (
        "Paired by seed, with 95 % intervals. Green: better, red: worse, blue: equivalent, grey: "
        "not enough runs. The band is the margin."
    )
    size = (SIZE[0], max(2.2, 0.38 * len(rows) + 0.9))
    return [_figure("differences", "Differences and their intervals", caption, paint, size)]


def _maps(analysis: Analysis) -> list[Drawing]:
    """The map that each filter drew, with what it dropped (drawn as a bitmap: it may be 50,000
    points)."""
    drawings: list[Drawing] = []
    for step in analysis.plan.steps.values():
        if step.kind != "select" or not step.finished or len(drawings) == 3:
            continue
        selection = Selection.load(step.out)
        if selection.x is None or selection.y is None or not np.isfinite(selection.x).any():
            continue

        def paint(axes: Any, s: Selection = selection) -> None:
            assert s.x is not None
            assert s.y is not None
            size = float(np.clip(3e4 / len(s.ids), 0.6, 9))
            colours = np.array(COLOURS)[s.labels[s.keep] % len(COLOURS)]
            axes.scatter(
                s.x[s.keep], s.y[s.keep], s=size, c=colours, alpha=0.35, linewidths=0,
                rasterized=True,
            )  # fmt: skip
            axes.scatter(
                s.x[~s.keep], s.y[~s.keep], s=2.5 * size, c="#d1242f", linewidths=0,
                rasterized=True, label=f"dropped: {s.dropped:,}",
            )  # fmt: skip
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_aspect("equal", "datalim")
            axes.spines[:].set_visible(False)
            axes.legend(loc="lower right", markerscale=max(1.0, 3 / size))

        name = step.step
        share = selection.dropped / max(1, len(selection.ids))
        drawings.append(
            _figure(
                f"map-{name}",
                f"The map of “{name}” and what it dropped",
                f"{selection.dropped:,} of {len(selection.ids):,} training samples dropped "
                f"({100 * share:.1f} %), in red; the others by class.",
                paint,
                (4.8, 4.4),
            )
        )
    return drawings


def _free(analysis: Analysis) -> list[str]:
    definition = analysis.study.definition
    return [axis for axis in definition.axes if axis not in definition.tune]


def _name(stem: str, here: dict[str, Any]) -> str:
    words = "-".join(f"{k}-{v}" for k, v in here.items())
    return re.sub(r"[^A-Za-z0-9.-]+", "-", f"{stem}-{words}" if words else stem).replace("_", "-")
