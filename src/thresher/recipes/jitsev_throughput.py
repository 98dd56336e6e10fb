"""Claim J2 (Jitsev 2021): K workers train on K times as many images per second as one.

Each worker keeps its batch (weak scaling) and its threads, so that K workers have K times the
hardware of one.
"""

import math
from functools import partial
from pathlib import Path

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.results import Trial
from thresher.study.tasks import Values

MARGIN = 0.05
"""A throughput above 1 - MARGIN times the ideal counts as ideal."""
WORKERS = {"smoke": (1, 2), "gpu": (1, 2, 4, 8), "paper": (1, 2, 4, 8)}
PER_WORKER = 64
SEEDS = 4
BASES: dict[str, Values] = {
    "smoke": {**studies.SMOKE, "model": "resnet20", "epochs": 2, "threads": 1},
    # Workers that share one GPU cannot be faster than one, so each worker is a core of the CPU.
    "gpu": {
        "data": "cifar10",
        "model": "resnet20",
        "epochs": 0.06,
        "evaluate_every": 0,
        "threads": 1,
        "device": "cpu",
    },
    "paper": {
        "data": "imagenet",
        "model": "resnet50",
        "image_size": 224,
        "epochs": 0.25,
        "evaluate_every": 0,
    },
}
"""Settings of one worker; more take as many steps, and so K times the epochs."""
ONE_AT_A_TIME: Values = {"kind": "in-process"}
"""Other runs beside it would take its cores."""
EXECUTORS: dict[str, Values] = {
    "smoke": ONE_AT_A_TIME,
    "gpu": ONE_AT_A_TIME,
    "paper": studies.EXECUTORS["paper"],
}


def definition(preset: str) -> Values:
    """Return the study: an arm per number of workers."""
    epochs = BASES[preset]["epochs"]
    arms = {
        f"{k} workers": {"workers": k, "batch_size": k * PER_WORKER, "epochs": k * epochs}
        for k in WORKERS[preset]
    }
    return {
        "title": "Throughput against workers",
        "metric": "images_per_s",
        "base": BASES[preset],
        "arms": arms,
        "seeds": SEEDS,
    }


def rows(trials: list[Trial]) -> list[ClaimRow]:
    """Compare the throughput of each worker, on a logarithmic scale, with that of one alone."""
    speeds: dict[tuple[int], dict[int, float]] = {}
    for trial in trials:
        if trial.images_per_s:
            k = trial.workers or 1
            speeds.setdefault((k,), {})[trial.seed] = math.log(trial.images_per_s / k)
    one, *more = sorted(k for (k,) in speeds)
    analysis = studies.compare_values(
        speeds,
        ("workers",),
        pairs=tuple((k, one) for k in more),
        margin=-math.log(1 - MARGIN),
    )
    lines = []
    for comparison in analysis.verdicts:
        k = comparison.arm
        reference, measured = (
            math.exp(studies.cell(analysis, workers=n).mean or 0.0) * n for n in (one, k)
        )
        lines.append(
            ClaimRow(
                "J2",
                f"{k} workers: τ_K = {k}·τ_ref images/s",
                f"{measured:,.0f} images/s, {math.exp(comparison.difference):.2f} of "
                f"{k} × {reference:,.0f}",
                holds.if_no_worse(comparison),
                studies.corrected_ratio(comparison),
                f"yes needs at least {1 - MARGIN:g} of it",
            )
        )
    return lines


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.study.study import Study

    study = Study.from_dict({**definition(preset), "executor": EXECUTORS[preset]}, out)
    studies.run_whole(study)
    trials = study.trials()
    runs = [{"workers": t.workers, "seed": t.seed, "images_per_s": t.images_per_s} for t in trials]
    return RecipeResult(rows(trials), {"runs": runs})


RECIPE = Recipe(
    "jitsev-throughput",
    "J2",
    "throughput of K workers against K times that of one",
    {preset: partial(reproduce, preset) for preset in WORKERS},
    {preset: base["data"] for preset, base in BASES.items()},
    PaperSettings(
        {"data": "imagenet", "model": "resnet50", "image_size": 224, "batch_per_worker": 64}
        | {"worker": "a GPU", "engine": "horovod"},
        {
            preset: {**base, "batch_per_worker": PER_WORKER, "seeds": SEEDS}
            | {"workers": list(WORKERS[preset])}
            | {"worker": "a GPU" if preset == "paper" else "a core of the CPU"}
            for preset, base in BASES.items()
        },
    ),
)
