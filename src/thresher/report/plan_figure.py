"""Figure of a plan: time against cost, with the efficient frontier."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from thresher.errors import counted
from thresher.report.scaling_figures import new_figure, plain_numbers, save_figure
from thresher.scaling.candidates import CandidateRun, efficient

LABEL_SIZE = np.array([0.36, 0.05])
"""Width and height of a label, of the axes: labels that would overlap are left out."""
UNITS = ((7200, "hours", 3600), (120, "minutes", 60), (0, "seconds", 1))


def plan_figure(runs: Sequence[CandidateRun], best: CandidateRun, path: Path) -> None:
    """Draw every run, the runs that no other beats in time and cost, and the recommended one.

    Cost is in device hours where the cluster has no price. The bars of the recommended run are its
    95 % intervals.
    """
    figure = new_figure(5.6, 4.4)
    axes = figure.subplots()
    _, unit, scale = next(row for row in UNITS if best.seconds >= row[0])

    def cost(run: CandidateRun) -> float:
        return run.device_hours if run.cost is None else run.cost

    every = [run.seconds / scale for run in runs]
    axes.plot(every, [cost(run) for run in runs], ".", c="#8c959f", label="every run considered")
    front = efficient(runs)
    times = [run.seconds / scale for run in front]
    axes.plot(times, [cost(run) for run in front], "o-", c="#0072b2", label="efficient frontier")
    low, high = best.seconds_low / best.seconds, best.seconds_high / best.seconds
    seconds, price = best.seconds / scale, cost(best)
    axes.errorbar(
        seconds,
        price,
        xerr=[[seconds * (1 - low)], [seconds * (high - 1)]],
        yerr=[[price * (1 - low)], [price * (high - 1)]],
        fmt="D",
        c="#d55e00",
        capsize=3,
        label="recommended, 95 % intervals",
    )
    name = "device hours" if best.cost is None else "cost (currency of the cluster's price)"
    axes.set(xscale="log", yscale="log", xlabel=f"time to the target ({unit})", ylabel=name)
    plain_numbers(axes.xaxis, axes.yaxis)
    labelled: list[np.ndarray] = []
    for run in [best, *front]:
        at = (run.seconds / scale, cost(run))
        place = axes.transAxes.inverted().transform(axes.transData.transform(at))
        if all(np.any(np.abs(place - other) > LABEL_SIZE) for other in labelled):
            label = f"{counted(run.workers, 'worker')}, batch {run.batch_size:,}"
            side = "left" if place[0] < 1 - LABEL_SIZE[0] else "right"
            offset = (5 if side == "left" else -5, 5)
            axes.annotate(label, at, offset, textcoords="offset points", fontsize=8, ha=side)
            labelled.append(place)
    figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    save_figure(figure, path)
