"""Pictures of a comparison: throughput by engine, one step of each, time to a loss by rule."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thresher.lab.engines import Row
from thresher.lab.rules import Trial, cells, seconds
from thresher.paths import atomic_file

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


def engines_figure(rows: Sequence[Row], path: Path) -> None:
    """Left: images per second against workers, the best setting as a line and the sweep as dots
    (as figure 8 of claim O5). Right: one step of each engine's best setting on the most workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    engines = list(dict.fromkeys(row.engine for row in rows))
    most = max(row.workers for row in rows)
    figure = plt.figure(figsize=(13, 2.2 + 1.9 * len(engines)), layout="constrained")
    grid = figure.add_gridspec(len(engines), 2, width_ratios=(2, 3))
    left = figure.add_subplot(grid[:, 0])
    for number, engine in enumerate(engines):
        mine = [row for row in rows if row.engine == engine]
        best = sorted((row for row in mine if row.best), key=lambda row: row.workers)
        colour = f"C{number}"
        left.plot([r.workers for r in best], [r.images_per_s for r in best], "-", color=colour)
        left.plot([r.workers for r in mine], [r.images_per_s for r in mine], ".", color=colour)
        left.plot([], [], ".-", color=colour, label=engine)
        _timeline(figure.add_subplot(grid[number, 1]), best[-1])
    left.set(
        xlabel="workers", ylabel="images per second", title="Best setting (line), sweep (dots)"
    )
    left.set_xticks(sorted({row.workers for row in rows}))
    left.set_ylim(bottom=0)
    left.legend()
    figure.suptitle(f"One step on {most} workers, as rank 0 saw it", fontsize=10, x=0.75)
    _save(figure, path)


def _timeline(axes: Any, row: Row) -> None:
    seen = set()
    for one in row.spans:
        kind = one["kind"]
        width = 1e3 * (one["end_s"] - one["begin_s"])
        lane = _LANE.get(kind, 0)
        axes.barh(
            lane,
            width,
            left=1e3 * one["begin_s"],
            height=0.7,
            color=COLOURS[kind],
            edgecolor="white",
            linewidth=0.4,
            label=None if kind in seen else kind,
            alpha=1.0 if lane == 0 else 0.6,
        )
        seen.add(kind)
    axes.set_yticks(range(3), LANES)
    axes.set_ylim(3.1, -0.5)  # from the top down, with room for the legend
    knobs = (
        f"buckets of {row.bucket_mb:g} MB"
        if row.engine == "ddp"
        else f"fusion {row.fusion_mb:g} MB, cycle {row.cycle_ms:g} ms"
    )
    title = f"{row.engine}, {knobs}: {100 * row.hidden:.0f} % of the communication hidden"
    axes.set(xlabel="milliseconds", title=title)
    axes.title.set_fontsize(9)
    axes.legend(fontsize=6, ncols=6, loc="lower right")


def rules_figure(trials: Sequence[Trial], path: Path) -> None:
    """Seconds to the loss by rule and compression, a panel for each network; × is not reached."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(trial.model for trial in trials))
    figure, panels = plt.subplots(
        1, len(models), figsize=(6 * len(models), 4), layout="constrained", squeeze=False
    )
    for axes, model in zip(panels[0], models, strict=True):
        mine = cells([trial for trial in trials if trial.model == model])
        for place, cell in enumerate(mine):
            found = seconds(cell)
            colour = "C0" if cell[0].compress == "none" else "C1"
            if found is None:
                axes.plot(0, place, "x", color=colour, clip_on=False)
            else:
                axes.barh(place, found["mean"], color=colour)
                axes.plot([found["low"], found["high"]], [place, place], "k-", lw=1)
        labels = [f"{c[0].rule}, {c[0].hosts} hosts, {c[0].compress}" for c in mine]
        axes.set_yticks(range(len(mine)), labels, fontsize=7)
        axes.invert_yaxis()
        title = f"{model}, links of {mine[0][0].link}; mean, least and most of {len(mine[0])}"
        axes.set(xlabel="seconds to the loss", title=title)
        axes.title.set_fontsize(9)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    with atomic_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=130)
    plt.close(figure)
