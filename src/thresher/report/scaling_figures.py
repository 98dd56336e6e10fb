"""Figures of a profile, of predicted efficiency and of a predicted step."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.paths import atomic_file
from thresher.scaling.compute import amdahl
from thresher.scaling.pipeline import Timeline
from thresher.scaling.profile import Layer, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_LAYERS = 12
REST = "lightgrey"
Colour = tuple[float, float, float, float]


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the file's suffix (PNG without one)."""
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=130)


def profile_figure(profile: Profile, path: Path) -> None:
    """Draw the time by layer, the speed-up by layer, and the whole step with Amdahl's bound."""
    import matplotlib
    from matplotlib.figure import Figure

    largest = max(b.batch for b in profile.batches)
    heavy = sorted(profile.layers, key=lambda layer: -_seconds(layer, largest))[:SHOWN_LAYERS]
    palette = matplotlib.colormaps["tab20"]
    colours = {layer.name: palette(index) for index, layer in enumerate(heavy)}
    figure = Figure(figsize=(17, 5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    _time_by_layer(left, profile, heavy, colours)
    _speedup_by_layer(middle, profile, heavy, colours)
    _speedup_of_step(right, profile)
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
    axes.set(
        xlabel="batch size on one worker", ylabel="ms per image", title="Compute time by layer"
    )
    axes.legend(fontsize=6)


def _speedup_by_layer(
    axes: "Axes", profile: Profile, heavy: Sequence[Layer], colours: dict[str, Colour]
) -> None:
    batches, splits = _batches(profile)
    top = batches[-1]
    for layer in heavy:
        speed = [_seconds(layer, top) / max(1e-12, _seconds(layer, batch)) for batch in batches]
        axes.plot(splits, speed, marker=".", color=colours[layer.name], label=layer.name)
    axes.plot(splits, splits, "k--", linewidth=0.8, label="perfect")
    axes.set(xscale="log", yscale="log", xlabel=f"workers sharing batch {top}", ylabel="speed-up")
    axes.set_title("Speed-up by layer without communication")
    axes.legend(fontsize=6)


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
    axes.set_xlabel(f"workers sharing batch {top} (at most {top})")
    axes.legend(fontsize=7)


def efficiency_figure(curves: dict[str, Sequence[tuple[int, float]]], path: Path) -> None:
    """Draw efficiency against workers.

    Args:
        curves: For each name, (workers, efficiency from 0 to 1) pairs.
        path: The file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot([w for w, _ in points], [100 * e for _, e in points], "o-", label=name)
    axes.set(xscale="log", xlabel="workers", ylabel="efficiency, %", ylim=(0, 105))
    axes.legend()
    save_figure(figure, path)


def timeline_figure(lines: dict[str, Timeline], path: Path) -> None:
    """Draw the messages of one predicted step beside the backward pass, a row per name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.5 + len(lines)), layout="constrained")
    axes = figure.subplots()
    colours = {"allreduce": "tab:orange", "negotiate": "tab:red"}
    for row, line in enumerate(lines.values()):
        axes.barh(2 * row, 1e3 * line.backward_s, height=0.8, color="tab:blue")
        for span in line.spans:
            axes.barh(
                2 * row + (0.8 if span.kind == "allreduce" else 1.3),
                1e3 * (span.end_s - span.begin_s),
                left=1e3 * span.begin_s,
                height=0.5,
                color=colours[span.kind],
                edgecolor="white",
                linewidth=0.3,
            )
    axes.set_yticks([2 * row + 0.5 for row in range(len(lines))], list(lines))
    axes.set(xlabel="ms from the beginning of the backward pass")
    axes.set_title("backward (blue), all-reduce (orange), negotiation (red)", fontsize=9)
    save_figure(figure, path)
