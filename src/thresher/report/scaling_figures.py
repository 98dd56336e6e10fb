"""Figures of profiles, predicted and measured steps, and comparisons of engines and rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import counted
from thresher.paths import atomic_file
from thresher.report.drawing import lay_out
from thresher.scaling.compute import amdahl
from thresher.scaling.pipeline import Span, Timeline
from thresher.scaling.profile import Layer, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SHOWN_LAYERS = 12
REST = "lightgrey"
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
Colour = tuple[float, float, float, float]


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path, dpi: int = 130) -> None:
    """Write a figure in the format of the file's suffix (PNG without one)."""
    lay_out(figure)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=dpi)


def plain_numbers(*axes: "Axis") -> None:
    """Write the numbers of logarithmic axes as 10 and 1,000, not as powers."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,.10g}" if super().__call__(x, pos) else ""

    for axis in axes:
        axis.set_major_formatter(Plain())
        axis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.4)))


def profile_figure(profile: Profile, path: Path) -> None:
    """Draw the time by layer, the speed-up by layer, and the whole step with Amdahl's bound."""
    import matplotlib

    largest = max(b.batch for b in profile.batches)
    heavy = sorted(profile.layers, key=lambda layer: -_seconds(layer, largest))[:SHOWN_LAYERS]
    palette = matplotlib.colormaps["tab20"]
    colours = {layer.name: palette(index) for index, layer in enumerate(heavy)}
    figure = new_figure(12, 4.8)
    left, middle, right = figure.subplots(1, 3)
    _time_by_layer(left, profile, heavy, colours)
    _speedup_by_layer(middle, profile, heavy, colours)
    _speedup_of_step(right, profile)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    save_figure(figure, path)


def _seconds(layer: Layer, batch: int) -> float:
    return layer.forward_s[batch] + layer.backward_s[batch]


def _batches(profile: Profile) -> tuple[list[int], list[float]]:
    """Return the measured batches, ascending, and the number of workers that makes each."""
    batches = sorted(b.batch for b in profile.batches)
    return batches, [batches[-1] / batch for batch in batches]


def _time_by_layer(
    axes: "Axes", profile: Profile, heavy: Sequence[Layer], colours: dict[str, Colour]
) -> None:
    batches, _ = _batches(profile)
    labels = [str(batch) for batch in batches]
    bottom = [0.0] * len(batches)
    for layer in heavy:
        heights = [1e3 * _seconds(layer, batch) / batch for batch in batches]
        name = f"{layer.name} ({layer.kind})"
        axes.bar(labels, heights, bottom=bottom, color=colours[layer.name], label=name)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    others = [layer for layer in profile.layers if layer not in heavy]
    heights = [1e3 * sum(_seconds(x, batch) for x in others) / batch for batch in batches]
    axes.bar(labels, heights, bottom=bottom, color=REST, label="other layers")
    axes.set(xlabel="batch size on one worker", ylabel="ms per image")
    axes.set_title("Compute time by layer")


def _speedup_by_layer(
    axes: "Axes", profile: Profile, heavy: Sequence[Layer], colours: dict[str, Colour]
) -> None:
    batches, splits = _batches(profile)
    top = batches[-1]
    for layer in heavy:
        speed = [_seconds(layer, top) / max(1e-12, _seconds(layer, batch)) for batch in batches]
        axes.plot(splits, speed, marker=".", color=colours[layer.name])
    axes.plot(splits, splits, "k--", linewidth=0.8, label="perfect")
    axes.set(xscale="log", yscale="log", xlabel=f"workers sharing batch {top}", ylabel="speed-up")
    plain_numbers(axes.xaxis, axes.yaxis)
    axes.set_title("Speed-up by layer, no communication")
    axes.legend(fontsize=9)


def _speedup_of_step(axes: "Axes", profile: Profile) -> None:
    batches, splits = _batches(profile)
    top = batches[-1]
    steps = {b.batch: b.step_s for b in profile.batches}
    limits = amdahl(profile)
    serial = limits.serial
    axes.plot(splits, [steps[top] / steps[b] for b in batches], "o-", label="measured")
    law = [1 / (serial + (1 - serial) * batch / top) for batch in batches]
    axes.plot(splits, law, label=f"Amdahl, {100 * serial:.1f} % does not scale")
    axes.axhline(limits.bound, color="tab:red", linewidth=0.8, label="Amdahl's bound")
    axes.plot(splits, splits, "k--", linewidth=0.8, label="perfect")
    axes.set(xscale="log", yscale="log", ylabel="speed-up", title=f"{profile.model}: whole step")
    plain_numbers(axes.xaxis, axes.yaxis)
    axes.set_xlabel(f"workers sharing batch {top} (at most {top})")
    axes.legend(fontsize=9)


def efficiency_figure(curves: dict[str, Sequence[tuple[int, float]]], path: Path) -> None:
    """Draw the (workers, efficiency from 0 to 1) pairs of each name."""
    figure = new_figure(5.6, 4)
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot([w for w, _ in points], [100 * e for _, e in points], "o-", label=name)
    axes.set(xscale="log", xlabel="workers", ylabel="efficiency (%)", ylim=(0, 105))
    plain_numbers(axes.xaxis)
    axes.legend(loc="lower left", fontsize=9)
    save_figure(figure, path)


def timeline_figure(lines: dict[str, Timeline], path: Path) -> None:
    """Draw the messages of one predicted step beside the backward pass, a row per name."""
    figure = new_figure(9, 1.5 + len(lines))
    axes = figure.subplots()
    colours = {"allreduce": "tab:orange", "negotiate": "tab:red"}
    for row, line in enumerate(lines.values()):
        axes.barh(2 * row, 1e3 * line.backward_s, height=0.8, color="tab:blue")
        for span in line.spans:
            y = 2 * row + (0.8 if span.kind == "allreduce" else 1.3)
            _span(axes, y, span, height=0.5, color=colours[span.kind], linewidth=0.3)
    axes.set_yticks([2 * row + 0.5 for row in range(len(lines))], list(lines))
    axes.set(xlabel="ms from the beginning of the backward pass")
    axes.set_title("backward (blue), all-reduce (orange), negotiation (red)", fontsize=9)
    save_figure(figure, path)


def _span(axes: "Axes", y: float, span: Span, **style: Any) -> None:
    begin, end = 1e3 * span.begin_s, 1e3 * span.end_s
    axes.barh(y, end - begin, left=begin, edgecolor="white", **style)


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
    figure = new_figure(13, 2.2 + 1.9 * len(curves))
    grid = figure.add_gridspec(len(curves), 2, width_ratios=(2, 3))
    left = figure.add_subplot(grid[:, 0])
    for number, curve in enumerate(curves):
        colour = f"C{number}"
        left.plot([w for w, _ in curve.best], [s for _, s in curve.best], "-", color=colour)
        left.plot([w for w, _ in curve.points], [s for _, s in curve.points], ".", color=colour)
        left.plot([], [], ".-", color=colour, label=curve.engine)
        _engine_step(figure.add_subplot(grid[number, 1]), curve)
    workers = sorted({workers for curve in curves for workers, _ in curve.points})
    left.set(xlabel="workers", ylabel="images per second", xticks=workers)
    left.set_title("Best setting (line), all settings (dots)")
    left.set_ylim(bottom=0)
    left.legend()
    figure.suptitle(f"One step on {counted(workers[-1], 'worker')}, rank 0", fontsize=10, x=0.75)
    save_figure(figure, path)


def _engine_step(axes: "Axes", curve: EngineCurve) -> None:
    labelled = set()
    for span in curve.spans:
        lane = _LANE.get(span.kind, 0)
        style = {"label": None if span.kind in labelled else span.kind, "linewidth": 0.4}
        style |= {"color": COLOURS[span.kind], "alpha": 1.0 if lane == 0 else 0.6}
        _span(axes, lane, span, height=0.7, **style)
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
    figure = new_figure(6 * len(panels), 4)
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
