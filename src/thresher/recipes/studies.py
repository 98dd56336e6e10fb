"""What recipes that are studies share: three sizes, the paper's pipeline, and reading cells.

A recipe says what its study holds; `run` runs or goes on with it, writes its report, and gives the
analysis, from which the recipe makes its table.
"""

from pathlib import Path
from typing import Any

import numpy as np

from thresher.report.page import write_report
from thresher.study import statistics
from thresher.study.analysis import Analysis, analyse
from thresher.study.study import Study

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
"""Minutes on two cores. A mirrored digit is another sign, so nothing is flipped."""

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
"""Per preset, the pack that its study reads."""

EXECUTORS: dict[str, dict[str, Any]] = {
    "smoke": {"kind": "local", "workers": 2},
    "gpu": {"kind": "local", "workers": 8, "mps": True},
    "paper": {"kind": "slurm", "minutes": 240, "gpus": 1, "cpus": 4},
}

Steps = dict[str, dict[str, Any]]


def pipeline(extractor: dict[str, Any], choose: dict[str, Any]) -> Steps:
    """Train an extractor, embed, drop the map's noise, and drop as many at random.

    `extractor` holds training settings, `choose` the settings of the network filter.
    """
    return {
        "extractor": {"do": "train", **extractor},
        "features": {"do": "embed", "run": "extractor"},
        "network": {"do": "select", "filter": "network", "features": "features", **choose},
        "random": {"do": "select", "filter": "random", "like": "network"},
    }


def run(content: dict[str, Any], out: Path) -> Analysis:
    """Run the study `content` in `out`, or go on with it; write its report."""
    study = Study.make(content, out)
    study.run()
    analysis = analyse(study)
    write_report(analysis)
    return analysis


def tuned(
    base: dict[str, Any], grid: dict[str, list[Any]], choose: str, out: Path, preset: str
) -> Any:
    """The value of the axis `choose` of `grid` with the best mean accuracy on a validation split.

    One seed, full data, a tenth held out: test samples have no say.
    """
    kept = {key: value for key, value in base.items() if key not in grid}
    content = {
        "title": f"Which {choose}? Chosen on validation",
        "base": {**kept, "validation": 0.1},
        "grid": grid,
        "seeds": 1,
        "metric": "validation_accuracy",
        "executor": EXECUTORS[preset],
    }
    cells = run(content, out).cells
    means = {
        value: np.mean([c["mean"] for c in cells if c[choose] == value and c["mean"] is not None])
        for value in grid[choose]
    }
    return max(means, key=lambda value: means[value])


def cell(analysis: Analysis, **axes: Any) -> dict[str, Any]:
    """The one cell with these values."""
    (found,) = (c for c in analysis.cells if all(c[k] == v for k, v in axes.items()))
    return found


def verdict(analysis: Analysis, arm: Any, baseline: Any, **axes: Any) -> dict[str, Any]:
    """The comparison of two arms in one cell; without axes, over all cells."""
    (found,) = (
        v
        for v in analysis.verdicts
        if v["arm"] == arm and v["baseline"] == baseline and v["cell"] == axes
    )
    return found


def span(low: float, high: float, unit: str = "") -> str:
    return f"{low:+.2f} … {high:+.2f}{unit}" if np.isfinite([low, high]).all() else ""


def mean(found: dict[str, Any]) -> str:
    """`77.5 (n = 4)`, or what is missing."""
    return f"{found['mean']:.1f} (n = {found['n']})" if found["mean"] is not None else "no run"


def compare(
    first: dict[str, Any], second: dict[str, Any], margin: float = 0.3
) -> statistics.Paired:
    """Two cells, paired by the seeds that both have."""
    both = [seed for seed in first["values"] if seed in second["values"]]
    return statistics.paired(
        [first["values"][seed] for seed in both], [second["values"][seed] for seed in both], margin
    )


def significant(found: statistics.Paired) -> bool:
    """The 95 % interval of the difference leaves zero out."""
    low, high = found.interval
    return bool(low > 0 or high < 0)
