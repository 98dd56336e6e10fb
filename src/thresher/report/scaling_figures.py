"""Pictures of a profile and of a prediction, like the papers'."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.paths import atomic_file
from thresher.scaling.compute import amdahl
from thresher.scaling.pipeline import Timeline
from thresher.scaling.profile import Profile

SHOWN_LAYERS = 12


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=130)
    _pyplot().close(figure)


def profile_figure(profile: Profile, path: Path) -> None:
    """Compute time by layer, speed-up by layer and the whole against Amdahl's bound (claim K2)."""
    plt = _pyplot()
    batches = sorted(b.batch for b in profile.batches)
    top = batches[-1]

    def total(layer: Any, batch: int) -> float:
        return float(layer.forward_s[batch] + layer.backward_s[batch])

    heavy = sorted(profile.layers, key=lambda layer: -total(layer, top))[:SHOWN_LAYERS]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5), layout="constrained")
    rest = {
        batch: sum(total(layer, batch) for layer in profile.layers if layer not in heavy)
        for batch in batches
    }
    bottom = [0.0] * len(batches)
    labels = [str(batch) for batch in batches]
    colours = dict(zip((layer.name for layer in heavy), plt.get_cmap("tab20").colors, strict=False))
    for layer in heavy:
        heights = [1e3 * total(layer, batch) / batch for batch in batches]
        name = f"{layer.name} ({layer.kind})"
        left.bar(labels, heights, bottom=bottom, color=colours[layer.name], label=name)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    heights = [1e3 * rest[batch] / batch for batch in batches]
    left.bar(labels, heights, bottom=bottom, color="lightgrey", label="all others")
    left.set(xlabel="batch on one node", ylabel="ms per image", title="Compute time by layer")
    left.legend(fontsize=6)
    splits = [top / batch for batch in batches]
    for layer in heavy:
        speed = [total(layer, top) / max(1e-12, total(layer, batch)) for batch in batches]
        middle.plot(splits, speed, marker=".", color=colours[layer.name], label=layer.name)
    middle.plot(splits, splits, "k--", linewidth=0.8, label="perfect")
    middle.set(
        xscale="log",
        yscale="log",
        xlabel=f"workers sharing batch {top}",
        ylabel="speed-up",
        title="Speed-up by layer, communication free",
    )
    middle.legend(fontsize=6)
    steps = {b.batch: b.step_s for b in profile.batches}
    found = amdahl(profile)
    right.plot(splits, [steps[top] / steps[b] for b in batches], "o-", label="measured")
    serial = found["serial"]
    law = [1 / (serial + (1 - serial) * batch / top) for batch in batches]
    right.plot(splits, law, label=f"Amdahl, {100 * serial:.1f} % does not scale")
    right.axhline(found["bound"], color="tab:red", linewidth=0.8, label="its bound")
    right.plot(splits, splits, "k--", linewidth=0.8, label="perfect")
    right.set(
        xscale="log",
        yscale="log",
        xlabel=f"workers sharing batch {top} (hard limit {top})",
        ylabel="speed-up",
        title=f"{profile.model}: the whole step",
    )
    right.legend(fontsize=7)
    _save(figure, path)


def efficiency_figure(curves: dict[str, Sequence[tuple[int, float]]], path: Path) -> None:
    """Efficiency against workers, a line per name (as in ORNL's figure 8, left)."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 5), layout="constrained")
    for name, points in curves.items():
        axis.plot([w for w, _ in points], [100 * e for _, e in points], "o-", label=name)
    axis.set(xscale="log", xlabel="workers", ylabel="efficiency, %", ylim=(0, 105))
    axis.legend()
    _save(figure, path)


def timeline_figure(lines: dict[str, Timeline], path: Path) -> None:
    """One step's messages beside the backward pass, a row per engine (figure 8, right)."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(9, 1.5 + len(lines)), layout="constrained")
    colours = {"allreduce": "tab:orange", "negotiate": "tab:red"}
    ticks = []
    for row, (name, line) in enumerate(lines.items()):
        axis.barh(2 * row, 1e3 * line.backward_s, height=0.8, color="tab:blue")
        for span in line.spans:
            axis.barh(
                2 * row + (0.8 if span.kind == "allreduce" else 1.3),
                1e3 * (span.end_s - span.begin_s),
                left=1e3 * span.begin_s,
                height=0.5,
                color=colours[span.kind],
                edgecolor="white",
                linewidth=0.3,
            )
        ticks.append((2 * row + 0.5, name))
    axis.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axis.set(xlabel="ms from the beginning of the backward pass")
    axis.set_title("backward (blue), all-reduce (orange), negotiation (red)", fontsize=9)
    _save(figure, path)
