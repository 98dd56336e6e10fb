"""Figure of a plan: time against cost, with the efficient frontier."""

from collections.abc import Sequence
from pathlib import Path

from thresher.report.scaling_figures import new_figure, save_figure
from thresher.scaling.candidates import CandidateRun, efficient

UNITS = ((7200, "hours", 3600), (120, "minutes", 60), (0, "seconds", 1))


def plan_figure(runs: Sequence[CandidateRun], best: CandidateRun, path: Path) -> None:
    """Draw every run, the runs that no other beats in time and cost, and the recommended one.

    Cost is in device hours where the cluster has no price. The bars of the recommended run are its
    95 % intervals.
    """
    figure = new_figure(7, 5)
    axes = figure.subplots()
    _, unit, scale = next(row for row in UNITS if best.seconds >= row[0])

    def cost(run: CandidateRun) -> float:
        return run.device_hours if run.cost is None else run.cost

    axes.plot([run.seconds / scale for run in runs], [cost(run) for run in runs], ".", c="#b0b7bf")
    front = efficient(runs)
    times = [run.seconds / scale for run in front]
    axes.plot(times, [cost(run) for run in front], "o-", c="#0072b2", label="efficient frontier")
    for run in front:
        label = f"{run.workers}×, batch {run.batch_size:,}"
        at = (run.seconds / scale, cost(run))
        axes.annotate(label, at, xytext=(4, 4), textcoords="offset points", fontsize=6)
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
        label=f"recommended: {best.workers} workers, batch {best.batch_size:,}",
    )
    name = "device hours" if best.cost is None else "cost, in the currency of the cluster's price"
    axes.set(xscale="log", yscale="log", xlabel=f"time to the target, {unit}", ylabel=name)
    axes.set_title("Every run considered (dots)", fontsize=9)
    axes.legend(fontsize=8)
    save_figure(figure, path)
