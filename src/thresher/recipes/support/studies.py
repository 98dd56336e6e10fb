"""What recipes that are studies share: presets, the filtering pipeline, and access to cells."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thresher.errors import ThresherError
from thresher.options import describe
from thresher.recipes.base import ClaimRow, Recipe, RecipeResult, Verdict
from thresher.recipes.support import holds
from thresher.recipes.support.differences import PaperSettings
from thresher.report.page import write_report
from thresher.study.analysis import MARGIN_POINTS, Analysis, analyse
from thresher.study.comparisons import ArmComparison
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.statistics import decimals
from thresher.study.study import Study
from thresher.study.summaries import CellSummary
from thresher.study.tasks import Values
from thresher.training.config import TrainConfig

SMOKE: Values = {
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

PAPER: Values = {
    "data": "cifar10",
    "model": "resnet18",
    "epochs": 50,
    "crop": 28,
    "optimizer": "sgd",
    "batch_norm": "local",
    "workers": 8,
}
"""What Gahlot et al. 2020 published, and nothing else."""

UNPUBLISHED: Values = {"lr": 0.1, "warmup_epochs": 5, "evaluate_every": 0}
"""Our choice of what the paper does not give.

The rate is the same at all batch sizes. At batch 8,192, 0.1 is best on validation among five from
0.05 to 0.8 (`jitsev-validation`); with the square-root rule, runs at 6,272 end between 44 and 75 %.
"""

FULL_SIZE: Values = {**PAPER, **UNPUBLISHED, "precision": "fp32"}
"""The paper's own size: eight GPUs, single precision."""

GPU: Values = {**FULL_SIZE, "workers": 1, "precision": "bf16"}
"""CIFAR-10 at the paper's 28×28 with the ImageNet stem, on one GPU."""

EQUAL_STEPS: Values = {"budget": "steps", "drop_last": True}
"""Arms that train on fewer images take as many steps as the arm with all of them, all of the same
size; otherwise they would also differ in the number of samples (`study.equal_training`)."""

DROP = 0.0512
"""Share that the paper drops with its extractor, ResNet-101 (table I)."""

FILTER: Values = {"extractor": "resnet101", "drop": DROP, "tsne": "sklearn-2020", "eps": 0.5}
"""What they published of the filter; t-SNE and DBSCAN had scikit-learn's defaults."""

OUR_MAP: Values = {"tsne": "ours", "eps": "that of the share to drop"}

WHOLE_BATCH = "over the whole batch"
"""What `batch_norm` local is on one worker; each of the paper's eight GPUs had its own part."""

UNSAID = ("momentum", "weight_decay", "schedule")
"""Options that a comparison with a paper names also where a recipe leaves them at their default."""

BASES = {"smoke": SMOKE, "gpu": GPU, "paper": FULL_SIZE}
"""Training options of each preset."""

DATA = {preset: base["data"] for preset, base in BASES.items()}
"""The pack that each preset reads."""

EXECUTORS: dict[str, Values] = {
    "smoke": {"kind": "local", "workers": 2},
    "gpu": {"kind": "local", "workers": 8, "mps": True},
    "paper": {"kind": "slurm", "minutes": 240, "gpus": 1, "cpus": 4},
}


def study_recipe(
    name: str,
    claim: str,
    title: str,
    reproduce: Callable[[str, Path], RecipeResult],
    paper: PaperSettings,
    data: Mapping[str, str] = DATA,
) -> Recipe:
    """Return a recipe that runs `reproduce(preset, out)` at every size."""
    return Recipe(
        name, claim, title, {key: partial(reproduce, key) for key in EXECUTORS}, data, paper
    )


def one_study(
    definition: Callable[[str], Values], rows: Callable[[Analysis], list[ClaimRow]]
) -> Callable[[str, Path], RecipeResult]:
    """Return the `reproduce` of a recipe that runs one study per preset and reads rows from it."""

    def reproduce(preset: str, out: Path) -> RecipeResult:
        return result(rows(run(preset, out, **definition(preset))), out)

    return reproduce


def pipeline(extractor: Values, drop: float, draws: int | None = None) -> dict[str, Values]:
    """Return the steps of a study that drops a share of the data, by the features of a network
    trained with the options `extractor`, and at random.

    Each seed has its own extractor, map and control: with one for all seeds, the luck of that one
    would look like an effect of the filter. `draws` limits the number of extractors and maps.
    """
    each: Values = {"each": ["seed"]}
    own = each if draws is None else {**each, "draws": draws}
    network = {"do": "select", "filter": "network", "features": "features", "drop": drop}
    return {
        "extractor": {"do": "train", **extractor, **own},
        "features": {"do": "embed", "run": "extractor", **own},
        "network": {**network, **own},
        "random": {"do": "select", "filter": "random", "like": "network", **each},
    }


def filtered(
    preset: str,
    extractor: str,
    grid: Values,
    seeds: int,
    draws: int | None = None,
    **options: Any,
) -> Values:
    """Return base, grid, steps and seeds of a study that drops as much as the paper.

    The network `extractor` is trained with the options of the preset, trials with `options`, too.
    """
    base = BASES[preset]
    batch = 64 if preset == "smoke" else 256
    return {
        "base": {**base, **EQUAL_STEPS, **options},
        "grid": grid,
        "steps": pipeline({**base, "model": extractor, "batch_size": batch}, DROP, draws),
        "seeds": seeds,
    }


def settings(study: Values) -> Values:
    """Return the settings of a study in one level, to be compared with what a paper published."""
    defaults = {info.name: info.default for info in describe(TrainConfig)}
    unsaid = {name: defaults[name] for name in UNSAID}
    flat = {**unsaid, **study["base"], **study["grid"], "seeds": study["seeds"]}
    if flat.get("workers", 1) == 1 and flat.get("batch_norm", "local") == "local":
        flat["batch_norm"] = WHOLE_BATCH
    several = len(study["grid"].get("batch_size", [])) > 1
    if several and "lr" not in study["grid"] and flat.get("lr_rule", "none") == "none":
        flat["rate"] = "the same for all batch sizes"
    if "steps" in study:
        flat["extractor"] = study["steps"]["extractor"].get("model", study["base"].get("model"))
        flat |= {"drop": study["steps"]["network"]["drop"], **OUR_MAP}
        draws = study["steps"]["extractor"].get("draws")
        flat["extractors"] = "one per seed" if draws is None else draws
    if "tune" in study:
        tuned = " and ".join(study["tune"])
        flat["tuning"] = f"{tuned} on validation for each batch size and arm"
        flat["tuning_seeds"] = study.get("tune_seeds", study["seeds"])
    return flat


def paper(published: Values, studies: Mapping[str, Values]) -> PaperSettings:
    """Return what a paper published, and the settings of the study of each preset."""
    return PaperSettings(published, {preset: settings(one) for preset, one in studies.items()})


def run(preset: str, out: Path, **definition: Any) -> Analysis:
    """Run a study in `out`, or resume it, and write its report."""
    study = Study.from_dict({**definition, "executor": EXECUTORS[preset]}, out)
    run_whole(study)
    analysis = analyse(study)
    write_report(analysis)
    return analysis


def run_whole(study: Study, steps_only: bool = False) -> None:
    """Run a study, or only its steps, and what failed in an earlier call again.

    Raises:
        ThresherError: A task failed. No claim is judged by the trials that are left.
    """
    failed = study.run(retry=True, steps_only=steps_only).failed
    if failed:
        count = f"{len(failed)} tasks of the study failed" if len(failed) > 1 else "a task failed"
        raise ThresherError(
            f"{count}; {failed[0].name}: {failed[0].error}",
            f"fix it and run the recipe again; the logs are in {study.root / 'logs'}",
        )


def in_each_cell(pairs: Sequence[tuple[Any, Any]], cells: Mapping[str, list[Any]]) -> list[str]:
    """Name the comparisons of `pairs` for every combination of the other axes, `cells`.

    As `primary` of a study, these are the comparisons that rows are made of; those over all cells
    are not among them.
    """
    places = [
        ", ".join(f"{axis}={value}" for axis, value in zip(cells, values, strict=True))
        for values in itertools.product(*cells.values())
    ]
    names = [f"{arm} - {baseline}" for arm, baseline in pairs]
    return [f"{name} @ {place}" if place else name for name in names for place in places]


def compare_values(
    values: Mapping[tuple[Any, ...], Mapping[int, float]], axes: Sequence[str], **config: Any
) -> Analysis:
    """Compare numbers that were computed from the runs of a study, as a study of their own.

    `values` holds a number per seed by the values of `axes`; `config` holds the options of
    `ComparisonConfig`. Numbers without a `metric` are in points, also differences below 1.
    """
    if "metric" not in config:
        config = {"margin": MARGIN_POINTS, **config}
    trials = [
        Trial(cell=dict(zip(axes, key, strict=True)), seed=seed, value=value)
        for key, by_seed in values.items()
        for seed, value in by_seed.items()
    ]
    return analyse(trials, ComparisonConfig(**config))


def result(rows: list[ClaimRow], out: Path, **data: Any) -> RecipeResult:
    """Return the result of a recipe whose study ran in `out`."""
    return RecipeResult(rows, {**data, "report": str(out / "report" / "index.html")})


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


def mean(cell: CellSummary) -> str:
    """Format the mean of a cell: `77.5 (n = 4)`."""
    return f"{cell.mean:.1f} (n = {cell.n})" if cell.mean is not None else "no run"


def means(analysis: Analysis, comparison: ArmComparison) -> dict[Any, str]:
    """Format the means of the arm and the baseline of a comparison, by their names."""
    both = (comparison.arm, comparison.baseline)
    axis, at = comparison.axis, comparison.cell
    return {name: mean(cell(analysis, **at, **{axis: name})) for name in both}


def named(means: Mapping[Any, str], between: str = ", ") -> str:
    """Return the names and means of arms as text."""
    return between.join(f"{name} {value}" for name, value in means.items())


def claim_row(
    claim: str,
    paper: str,
    measured: str,
    comparison: ArmComparison,
    judge: Callable[[ArmComparison], Verdict] = holds.if_better,
    unit: str = " points",
    **values: Any,
) -> ClaimRow:
    """Return the row of a claim that one comparison decides."""
    interval = corrected(comparison, unit)
    return ClaimRow(
        claim, paper, measured, judge(comparison), interval, comparison.sentence, values
    )


def corrected(comparison: ArmComparison, unit: str = " points") -> str:
    """Format the interval of a difference that agrees with its verdict; empty if not finite."""
    low, high = comparison.adjusted_low, comparison.adjusted_high
    digits = decimals(low, high)
    return f"{low:+.{digits}f} … {high:+.{digits}f}{unit}" if np.isfinite(high - low) else ""


def corrected_ratio(comparison: ArmComparison) -> str:
    """Format that interval as a ratio, if the values are logarithms; empty if not finite."""
    low, high = comparison.adjusted_low, comparison.adjusted_high
    return f"{np.exp(low):.2f} … {np.exp(high):.2f}" if np.isfinite(high - low) else ""
