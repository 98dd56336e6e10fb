"""Claim J3 (Jitsev 2021): each batch size needs its own settings, chosen on a validation split."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig5 import UNSCALED
from thresher.recipes.support import holds, studies
from thresher.study.results import Trial
from thresher.study.tasks import Values

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, "validation": 0.1},
        "grid": {"batch_size": [32, 512], "lr": [0.03, 0.1, 0.3]},
        "seeds": 5,
        "tune": ["lr"],
    },
    "gpu": {
        "base": {**studies.GPU, **UNSCALED, "validation": 5000},
        "grid": {"batch_size": [256, 2048, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8]},
        "seeds": 6,
        "tune": ["lr"],
    },
    "paper": {
        "base": {**studies.FULL_SIZE, **UNSCALED, "validation": 5000},
        "grid": {"batch_size": [256, 1024, 4096, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]},
        "seeds": 6,
        "tune": ["lr"],
    },
}

PUBLISHED: Values = {"data": "cifar10", "validation": 5000}


CHOOSING = 2
"""Seeds whose validation accuracy chooses the rate. The others are compared on test: a run that was
lucky on validation is often lucky on test, so the same runs would favour what they chose."""


def definition(preset: str) -> Values:
    """Return the study: every rate at every batch size with every seed."""
    title = "Learning rate tuned for each batch on the validation split"
    return {"title": title, "compare": "batch_size", **STUDIES[preset]}


def rates(trials: list[Trial]) -> dict[int, float]:
    """Return the rate with the best mean validation accuracy of the first seeds, by batch size."""
    seeds = sorted({t.seed for t in trials})[:CHOOSING]
    scores: dict[int, dict[float, float]] = {}
    for trial in (t for t in trials if t.seed in seeds):
        at = scores.setdefault(trial.cell["batch_size"], {})
        at[trial.cell["lr"]] = at.get(trial.cell["lr"], 0.0) + (trial.validation_accuracy or 0.0)
    return {batch: max(sums, key=lambda lr: sums[lr]) for batch, sums in scores.items()}


def rows(trials: list[Trial]) -> list[ClaimRow]:
    """Compare test accuracy with the batch's own rate and with that of the smallest batch."""
    chosen = rates(trials)
    first, *larger = chosen
    seeds = sorted({t.seed for t in trials})[CHOOSING:]
    values = {
        (batch, name): {
            t.seed: t.accuracy
            for t in trials
            if t.cell == {"batch_size": batch, "lr": lr}
            and t.seed in seeds
            and t.accuracy is not None
        }
        for batch in larger
        for name, lr in (("own", chosen[batch]), ("inherited", chosen[first]))
        if chosen[batch] != chosen[first]
    }
    pair = ("own", "inherited")
    retuned = list(dict.fromkeys(batch for batch, _ in values))
    verdicts = {}
    if values:
        primary = tuple(studies.in_each_cell([pair], {"batch_size": retuned}))
        analysis = studies.compare_values(
            values, ("batch_size", "rate"), compare="rate", pairs=(pair,), primary=primary
        )
        verdicts = {c.cell["batch_size"]: c for c in analysis.verdicts if c.cell}
    lines = []
    for batch in larger:
        paper = f"batch {batch:,} needs its own rate"
        if batch not in verdicts:
            text = f"validation chose {chosen[batch]} for both"
            lines.append(ClaimRow("J3", paper, text, "no"))
            continue
        comparison = verdicts[batch]
        lines.append(
            ClaimRow(
                "J3",
                paper,
                f"{comparison.difference:+.2f} points on test with {chosen[batch]} instead of "
                f"{chosen[first]}",
                holds.if_better(comparison),
                studies.corrected(comparison),
                f"{CHOOSING} seeds chose the rates and {len(seeds)} others compare them",
            )
        )
    return lines


def reproduce(preset: str, out: Path) -> RecipeResult:
    analysis = studies.run(preset, out, **definition(preset))
    return studies.result(rows(analysis.trials), out, chosen=rates(analysis.trials))


RECIPE = studies.study_recipe(
    "jitsev-validation",
    "J3",
    "hyper-parameters retuned for each batch on a validation split",
    reproduce,
    studies.paper(PUBLISHED, STUDIES),
)
