"""What recipes that are studies share: presets, the filtering pipeline, and access to cells."""

from pathlib import Path
from typing import Any

import numpy as np

from thresher.recipes.base import Verdict
from thresher.report.page import write_report
from thresher.study import statistics
from thresher.study.analysis import Analysis, analyse
from thresher.study.comparisons import ArmComparison
from thresher.study.study import Study
from thresher.study.summaries import CellSummary

SMOKE: dict[str, Any] = {
    "data": "digits",
    "model": "tiny",
    "epochs": 12,
    "lr": 0.1,
    "warmup_epochs": 2,
    "flip": False,
    "crop_padding": 1,
    "evaluate_every": 0,
}
"""Minutes on two cores. No flips: a mirrored digit is a different shape."""

GPU: dict[str, Any] = {
    "data": "cifar10",
    "model": "resnet18",
    "epochs": 50,
    "lr": 0.1,
    "base_batch": 256,
    "lr_rule": "sqrt",
    "warmup_epochs": 5,
    "crop": 28,
    "precision": "bf16",
    "evaluate_every": 0,
}
"""CIFAR-10 at the paper's 28×28 with the ImageNet stem, on one GPU."""

PAPER: dict[str, Any] = {**GPU, "precision": "fp32", "workers": 8}
"""As published: eight GPUs, single precision."""

DATA = {"smoke": SMOKE["data"], "gpu": GPU["data"], "paper": PAPER["data"]}
"""The pack that each preset reads."""

EXECUTORS: dict[str, dict[str, Any]] = {
    "smoke": {"kind": "local", "workers": 2},
    "gpu": {"kind": "local", "workers": 8, "mps": True},
    "paper": {"kind": "slurm", "minutes": 240, "gpus": 1, "cpus": 4},
}

Steps = dict[str, dict[str, Any]]


def pipeline(extractor: dict[str, Any], network_filter: dict[str, Any]) -> Steps:
    """Return the steps of a study that filters data with the features of a network.

    Args:
        extractor: Training options of the network.
        network_filter: Options of the network filter.
    """
    return {
        "extractor": {"do": "train", **extractor},
        "features": {"do": "embed", "run": "extractor"},
        "network": {"do": "select", "filter": "network", "features": "features", **network_filter},
        "random": {"do": "select", "filter": "random", "like": "network"},
    }


def run(definition: dict[str, Any], out: Path) -> Analysis:
    """Run a study in `out`, or resume it, and write its report."""
    study = Study.from_dict(definition, out)
    study.run()
    analysis = analyse(study)
    write_report(analysis)
    return analysis


def report_path(out: Path) -> str:
    """Return the report that `run` writes."""
    return str(out / "report" / "index.html")


def tuned(
    base: dict[str, Any], grid: dict[str, list[Any]], axis: str, out: Path, preset: str
) -> Any:
    """Return the value of `axis` of `grid` with the best mean validation accuracy.

    One seed, full data, a tenth held out; the test split is not used.
    """
    definition = {
        "title": f"Choice of {axis} on the validation split",
        "base": {**{k: v for k, v in base.items() if k not in grid}, "validation": 0.1},
        "grid": grid,
        "seeds": 1,
        "metric": "validation_accuracy",
        "executor": EXECUTORS[preset],
    }
    cells = run(definition, out).cells
    means = {
        value: np.mean([c.mean for c in cells if c.cell[axis] == value and c.mean is not None])
        for value in grid[axis]
    }
    return max(means, key=lambda value: means[value])


def cell(analysis: Analysis, **axes: Any) -> CellSummary:
    """Return the one cell with these values."""
    (match,) = (c for c in analysis.cells if axes.items() <= c.cell.items())
    return match


def verdict(analysis: Analysis, arm: Any, baseline: Any, **axes: Any) -> ArmComparison:
    """Return the comparison of two arms in one cell; without axes, over all cells."""
    (match,) = (
        c for c in analysis.verdicts if (c.arm, c.baseline, c.cell) == (arm, baseline, axes)
    )
    return match


def holds_if_better(word: str) -> Verdict:
    """Return whether "arm is better" holds, given the verdict of a comparison."""
    return {"better": "yes", "not enough runs": "not enough runs"}.get(word, "no")  # type: ignore[return-value]


def interval(low: float, high: float, unit: str = "") -> str:
    """Format an interval; empty if it is not finite."""
    return f"{low:+.2f} … {high:+.2f}{unit}" if np.isfinite([low, high]).all() else ""


def mean(cell: CellSummary) -> str:
    """Format the mean of a cell: `77.5 (n = 4)`."""
    return f"{cell.mean:.1f} (n = {cell.n})" if cell.mean is not None else "no run"


def compare(first: CellSummary, second: CellSummary, margin: float = 0.3) -> statistics.Paired:
    """Compare two cells, paired by the seeds that both have."""
    both = [seed for seed in first.values if seed in second.values]
    return statistics.paired(
        [first.values[seed] for seed in both], [second.values[seed] for seed in both], margin
    )


def significant(difference: statistics.Paired) -> bool:
    """Return whether the 95 % interval of the difference excludes zero."""
    low, high = difference.interval
    return bool(low > 0 or high < 0)
