"""The figures of a study: those that its axes and results allow."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from thresher.data.selection import Selection
from thresher.report.drawing import COLOURS, GRID, INK, SIZE, Drawing, draw, line_style, plain
from thresher.report.tables import shown_interval
from thresher.study.analysis import Analysis
from thresher.study.expand import bounded_name
from thresher.study.reported import TO_TARGET
from thresher.study.summaries import CellSummary, describe_cell, preferred_batches
from thresher.study.tasks import Values

MOST_PANELS = 8
MOST_MAPS = 3
MOST_DIFFERENCES = 40


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Draw every figure that the study's axes and results allow, most important first."""
    drawings = [
        *_against(analysis, "batch_size", "batch size"),
        *_preferred(analysis),
        *_against(analysis, "warmup_epochs", "warm-up epochs"),
        *_time_against_workers(analysis),
    ]
    drawings = [*(drawings or _by_compared(analysis)), *_differences(analysis), *_maps(analysis)]
    # File names have fewer characters than the values of axes: two figures must not share one.
    names: list[str] = []
    for drawing in drawings:
        names.append(drawing.name if drawing.name not in names else f"{drawing.name}-{len(names)}")
    return [replace(one, name=name) for one, name in zip(drawings, names, strict=True)]


def _lines(
    axes: Any, cells: Sequence[CellSummary], x: str, series: str | None, analysis: Analysis
) -> None:
    """Plot a line with 95 % intervals per value of `series`; points of one x are set apart."""
    values = list(dict.fromkeys(c.cell[series] for c in cells)) if series else [None]
    positions = sorted({c.cell[x] for c in cells})
    log = all(p > 0 for p in positions) and positions[-1] / positions[0] > 8
    for order, value in enumerate(values):
        mine = [c for c in cells if not series or c.cell[series] == value]
        ends = [(c, shown_interval(c, analysis.metric)) for c in mine]
        points = sorted((c.cell[x], c.mean, *both) for c, both in ends if c.mean is not None)
        if not points:
            continue
        shift = order - (len(values) - 1) / 2
        span = positions[-1] - positions[0] or 1
        xs = [at * 1.03**shift if log else at + 0.008 * shift * span for at, *_ in points]
        means = [mean for _, mean, *_ in points]
        lows = [mean - low if math.isfinite(low) else 0 for _, mean, low, _ in points]
        highs = [high - mean if math.isfinite(high) else 0 for _, mean, _, high in points]
        style = {"label": plain(value) if series else None, **line_style(value, order)}
        axes.errorbar(xs, means, yerr=[lows, highs], capsize=2.5, elinewidth=1.1, **style)
    if log:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(positions, [_tick(p) for p in positions])
    if len(positions) > 6:
        axes.tick_params(axis="x", rotation=40)
    axes.set_ylabel(_metric_label(analysis))
    if series and len(values) > 1:
        title = series.replace("_", " ") if series not in ("selection", "arm") else None
        axes.legend(title=title and plain(title), ncols=min(3, len(values)), loc="best")


def _tick(value: float) -> str:
    """Return 4,096 as it is and 10,400 as 10.4k: longer labels would overlap."""
    return f"{value:,g}" if value < 10_000 else f"{value / 1000:.3g}k"


def _metric_name(analysis: Analysis) -> str:
    names = {"accuracy": "test accuracy", "loss": "test loss", "time_to_target": "time to target"}
    return names.get(analysis.metric, analysis.metric.replace("_", " "))


def _metric_label(analysis: Analysis) -> str:
    return analysis.label(plain(_metric_name(analysis)))


def _censored(analysis: Analysis) -> str:
    """Return a sentence about the runs that a mean of times to a target leaves out."""
    runs = sum(len(c.censored) for c in analysis.cells) if analysis.metric in TO_TARGET else 0
    return f" Left out: {runs} that did not reach the target." if runs else ""


def _is_numeric(analysis: Analysis, axis: str) -> bool:
    """Return whether the study has the axis and all of its values are numbers."""
    values = [c.cell[axis] for c in analysis.cells if axis in c.cell]
    return bool(values) and all(type(value) in (int, float) for value in values)


def _against(analysis: Analysis, axis: str, label: str) -> list[Drawing]:
    """Plot the metric against a numeric axis, one figure per combination of the other axes."""
    if not _is_numeric(analysis, axis) or len({c.cell[axis] for c in analysis.cells}) < 2:
        return []
    others = [name for name in analysis.axes if name != axis]
    series = analysis.compared if analysis.compared in others else next(iter(others), None)
    rest = [name for name in others if name != series]
    drawings: list[Drawing] = []
    for values in dict.fromkeys(tuple(c.cell[n] for n in rest) for c in analysis.cells):
        here = dict(zip(rest, values, strict=True))
        cells = [c for c in analysis.cells if here.items() <= c.cell.items()]
        if all(c.mean is None for c in cells) or len(drawings) == MOST_PANELS:
            continue

        def paint(axes: Any, cells: Sequence[CellSummary] = cells) -> None:
            _lines(axes, cells, axis, series, analysis)
            axes.set_xlabel(label)

        where = f" at {describe_cell(here)}" if here else ""
        title = f"{_metric_name(analysis).capitalize()} vs. {label}{where}"
        caption = f"Mean over seeds; bars are 95 % intervals of the mean.{_censored(analysis)}"
        drawings.append(draw(_name(f"{analysis.metric}-{axis}", here), title, caption, paint))
    return drawings


def _preferred(analysis: Analysis) -> list[Drawing]:
    """Plot the best batch size against the learning rate."""
    if not (_is_numeric(analysis, "lr") and _is_numeric(analysis, "batch_size")):
        return []
    scale = (analysis.margin, analysis.higher_is_better, analysis.metric)
    batches = preferred_batches(analysis.cells, *scale)
    if len({batch.cell["lr"] for batch in batches}) < 2:
        return []

    def paint(axes: Any) -> None:
        groups: dict[tuple[Any, ...], list[tuple[float, int, int, int]]] = {}
        for batch in batches:
            key = tuple(value for axis, value in batch.cell.items() if axis != "lr")
            point = (batch.cell["lr"], batch.batch_size, min(batch.as_good), max(batch.as_good))
            groups.setdefault(key, []).append(point)
        for order, (key, points) in enumerate(groups.items()):
            rates, best, low, high = np.array(sorted(points), float).T
            style = line_style(key[0] if key else "", order)
            label = plain(", ".join(map(str, key))) or None
            bars = [best - low, high - best]
            axes.errorbar(rates, best, yerr=bars, label=label, capsize=2.5, **style)
        rates = sorted({batch.cell["lr"] for batch in batches})
        sizes = sorted({batch.batch_size for batch in batches})
        axes.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="best batch size")
        axes.minorticks_off()
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.set_yticks(sizes, [f"{size:,}" for size in sizes])
        if len(groups) > 1:
            axes.legend()

    by = batches[0].chosen_by if batches[0].chosen_by != "metric" else _metric_name(analysis)
    caption = (
        f"Batch size with the best mean {by}; bars span the batch sizes within the margin of the "
        "best."
    )
    return [draw("preferred-batch", "Best batch size at each learning rate", caption, paint)]


def _time_against_workers(analysis: Analysis) -> list[Drawing]:
    """Plot the time to the target (or of the whole run) against the number of workers."""
    if not _is_numeric(analysis, "workers"):
        return []
    reached = any(c.time_to_target is not None for c in analysis.cells)
    label = "time to target" if reached else "training time"
    series = analysis.compared if analysis.compared != "workers" else None
    times: dict[Any, dict[int, list[float]]] = {}
    for c in analysis.cells:
        seconds = c.time_to_target if reached else c.seconds
        if seconds is not None:
            by_count = times.setdefault(c.cell[series] if series else None, {})
            by_count.setdefault(c.cell["workers"], []).append(seconds)
    counts = sorted({count for by_count in times.values() for count in by_count})
    if len(counts) < 2:
        return []

    def paint(axes: Any) -> None:
        for order, (value, by_count) in enumerate(times.items()):
            known = [(n, float(np.mean(by_count[n]))) for n in counts if n in by_count]
            name = plain(value) if series else None
            axes.plot(*zip(*known, strict=True), label=name, **line_style(value, order))
        first = max(max(by_count.get(counts[0], [0.0])) for by_count in times.values())
        ideal = [first * counts[0] / n for n in counts]
        axes.plot(counts, ideal, color=GRID, linestyle="--", label="ideal", zorder=0)
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="workers", ylabel=f"{label} (s)")
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.legend()

    caption = "Mean over seeds and settings; runs that did not reach the target are left out."
    return [draw("time-workers", f"{label.capitalize()} vs. workers", caption, paint)]


def _by_compared(analysis: Analysis) -> list[Drawing]:
    """Plot the metric of every run by the compared values; for axes that are not numeric."""
    axis = analysis.compared
    cells = [c for c in analysis.cells if c.mean is not None]
    if axis is None or not cells:
        return []
    label = axis.replace("_", " ")

    def paint(axes: Any) -> None:
        names = list(dict.fromkeys(str(c.cell[axis]) for c in cells))
        for c in cells:
            at = names.index(str(c.cell[axis]))
            colour = line_style(c.cell[axis], at)["color"]
            values = list(c.values.values())
            jitter = 0.08 * (np.arange(len(values)) - (len(values) - 1) / 2) / max(len(values), 1)
            axes.plot(at + jitter, values, "o", color=colour, alpha=0.45, markersize=4)
            axes.plot([at - 0.2, at + 0.2], [c.mean] * 2, color=colour, linewidth=2)
        axes.set_xticks(range(len(names)), [plain(name) for name in names])
        axes.set(xlabel=plain(label), ylabel=_metric_label(analysis), xlim=(-0.6, len(names) - 0.4))

    title = f"{_metric_name(analysis).capitalize()} by {label}"
    caption = f"Each dot is a run; the line is the mean.{_censored(analysis)}"
    return [draw(_name(f"{analysis.metric}-{axis}", {}), title, caption, paint)]


def _differences(analysis: Analysis) -> list[Drawing]:
    """Plot every comparison as a difference with its interval."""
    shown = [c for c in analysis.verdicts if c.n >= 2][:MOST_DIFFERENCES][::-1]
    if not shown:
        return []
    colours = {"better": "#009e73", "worse": "#d55e00"}
    colours |= dict.fromkeys(("equivalent", "no worse", "excludes the claimed effect"), "#0072b2")

    def paint(axes: Any) -> None:
        axes.axvspan(-analysis.margin, analysis.margin, color=GRID, alpha=0.5, linewidth=0)
        axes.axvline(0, color=INK, linewidth=0.8)
        for at, c in enumerate(shown):
            colour = colours.get(c.verdict, "#8c8c8c")
            axes.plot([c.low, c.high], [at, at], color=colour, linewidth=1.6)
            axes.plot(c.difference, at, "o", color=colour, markersize=5)
        where = [describe_cell(c.cell) or "all settings" for c in shown]
        labels = [f"{c.arm} − {c.baseline}\n{at}" for c, at in zip(shown, where, strict=True)]
        axes.set_yticks(range(len(shown)), [plain(label) for label in labels], fontsize=9)
        axes.grid(axis="y", visible=False)
        unit = plain(analysis.unit or analysis.metric)
        axes.set(xlabel=f"difference ({unit})", ylim=(-0.6, len(shown) - 0.4))

    names = {"#009e73": "Green", "#d55e00": "Red", "#0072b2": "Blue"}
    words = dict.fromkeys(c.verdict for c in reversed(shown))
    legend = " ".join(f"{names.get(colours.get(word, ''), 'Grey')}: {word}." for word in words)
    several = sum(c.n >= 2 for c in analysis.verdicts)
    part = f" The first {len(shown)} of {several}." if several > len(shown) else ""
    caption = (
        "Mean differences, paired by seed, with 95 % intervals; the band is the margin. "
        f"{legend}{part}"
    )
    size = (SIZE[0], max(2.2, 0.38 * len(shown) + 0.9))
    return [draw("differences", "Differences with 95 % intervals", caption, paint, size)]


def _maps(analysis: Analysis) -> list[Drawing]:
    """Plot the feature map of each filter and what it dropped, as a bitmap inside the SVG."""
    drawings: list[Drawing] = []
    for step in analysis.plan.steps.values() if analysis.plan is not None else ():
        if step.kind != "select" or not step.finished or len(drawings) == MOST_MAPS:
            continue
        selection = Selection.load(step.out)
        if selection.x is None or selection.y is None or not np.isfinite(selection.x).any():
            continue

        def paint(axes: Any, s: Selection = selection) -> None:
            assert s.x is not None
            assert s.y is not None
            size = float(np.clip(3e4 / len(s.ids), 0.6, 9))
            colours = np.array(COLOURS)[s.labels[s.keep] % len(COLOURS)]
            style: dict[str, Any] = {"linewidths": 0, "rasterized": True}
            axes.scatter(s.x[s.keep], s.y[s.keep], s=size, c=colours, alpha=0.35, **style)
            style |= {"s": 2.5 * size, "c": "#d1242f", "label": f"dropped: {s.dropped:,}"}
            axes.scatter(s.x[~s.keep], s.y[~s.keep], **style)
            axes.set(xticks=[], yticks=[])
            axes.set_aspect("equal", "datalim")
            axes.spines[:].set_visible(False)
            axes.legend(loc="lower right", markerscale=max(1.0, 3 / size))

        share = selection.dropped / max(1, len(selection.ids))
        caption = (
            f"{selection.dropped:,} of {len(selection.ids):,} training samples dropped "
            f"({100 * share:.1f} %), in red; the others coloured by class."
        )
        where = f" at {describe_cell(step.at)}" if step.at else ""
        title = f"Feature map of “{step.step}”{where} and the samples it dropped"
        name = _name(f"map-{step.step}", step.at)
        drawings.append(draw(name, title, caption, paint, (4.8, 4.4)))
    return drawings


def _name(stem: str, here: Values) -> str:
    words = "-".join([stem, *(f"{k}-{v}" for k, v in here.items())])
    return bounded_name(re.sub(r"[^A-Za-z0-9.-]+", "-", words))
