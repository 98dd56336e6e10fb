"""Figures of a comparison: throughput and one step by engine, time to a loss by scaling rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.report.scaling_figures import save_figure
from thresher.scaling.pipeline import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "forward": "#7fa7d1",
    "backward": "#2f5d8c",
    "wait": "#d9d9d9",
    "update": "#8c8c8c",
    "bucket": "#d9772f",
    "negotiate": "#e3c34a",
    "allreduce": "#d9772f",
}
LANES = ("compute", "negotiation", "all-reduce")
_LANE = {"negotiate": 1, "allreduce": 2, "bucket": 2}


@dataclass(frozen=True)
class EngineCurve:
    """Throughput of one engine, and one step of its best setting on the most workers."""

    engine: str
    points: Sequence[tuple[int, float]]
    """(workers, images per second) of every setting."""
    best: Sequence[tuple[int, float]]
    """The same for the best setting, by ascending workers."""
    title: str
    """Title of the step."""
    spans: Sequence[Span]
    """The step as rank 0 recorded it."""


def engines_figure(curves: Sequence[EngineCurve], path: Path) -> None:
    """Draw images per second against workers (left) and one step of each engine (right)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 2.2 + 1.9 * len(curves)), layout="constrained")
    grid = figure.add_gridspec(len(curves), 2, width_ratios=(2, 3))
    left = figure.add_subplot(grid[:, 0])
    for number, curve in enumerate(curves):
        colour = f"C{number}"
        left.plot([w for w, _ in curve.best], [s for _, s in curve.best], "-", color=colour)
        left.plot([w for w, _ in curve.points], [s for _, s in curve.points], ".", color=colour)
        left.plot([], [], ".-", color=colour, label=curve.engine)
        _timeline(figure.add_subplot(grid[number, 1]), curve)
    workers = sorted({workers for curve in curves for workers, _ in curve.points})
    left.set(xlabel="workers", ylabel="images per second")
    left.set_title("Best setting (line), all settings (dots)")
    left.set_xticks(workers)
    left.set_ylim(bottom=0)
    left.legend()
    figure.suptitle(f"One step on {workers[-1]} workers, rank 0", fontsize=10, x=0.75)
    save_figure(figure, path)


def _timeline(axes: "Axes", curve: EngineCurve) -> None:
    labelled = set()
    for span in curve.spans:
        lane = _LANE.get(span.kind, 0)
        axes.barh(
            lane,
            1e3 * (span.end_s - span.begin_s),
            left=1e3 * span.begin_s,
            height=0.7,
            color=COLOURS[span.kind],
            edgecolor="white",
            linewidth=0.4,
            label=None if span.kind in labelled else span.kind,
            alpha=1.0 if lane == 0 else 0.6,
        )
        labelled.add(span.kind)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(3.1, -0.5)  # top down, with room for the legend
    axes.set(xlabel="milliseconds")
    axes.set_title(curve.title, fontsize=9)
    axes.legend(fontsize=6, ncols=6, loc="lower right")


@dataclass(frozen=True)
class SecondsBar:
    """One bar of `rules_figure`."""

    label: str
    seconds: tuple[float, float, float] | None
    """Mean, least and most; None if a run did not reach the loss."""
    highlighted: bool
    """Whether to draw it in the second colour."""


def rules_figure(panels: dict[str, Sequence[SecondsBar]], path: Path) -> None:
    """Draw seconds to the loss, a panel per title; × means not reached."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(panels), 4), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (title, bars) in zip(grid[0], panels.items(), strict=True):
        for row, bar in enumerate(bars):
            colour = "C1" if bar.highlighted else "C0"
            if bar.seconds is None:
                axes.plot(0, row, "x", color=colour, clip_on=False)
            else:
                mean, low, high = bar.seconds
                axes.barh(row, mean, color=colour)
                axes.plot([low, high], [row, row], "k-", lw=1)
        axes.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=7)
        axes.invert_yaxis()
        axes.set(xlabel="seconds to the loss")
        axes.set_title(title, fontsize=9)
    save_figure(figure, path)
