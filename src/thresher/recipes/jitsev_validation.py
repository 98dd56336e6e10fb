"""Claim J3 (Jitsev 2021): each batch size needs its own settings, chosen on a validation split.

The first seeds choose a rate for each batch size by validation accuracy. The others compare it, on
test, with the rate of the smallest batch: a run that was lucky on validation is often lucky on
test, so the same runs would favour what they chose.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.study.results import Trial
from thresher.study.tasks import Values

CHOOSING = 2
"""Seeds that choose the rates."""
TUNED: Values = {"tune": ["lr"], "tune_seeds": CHOOSING}

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, "validation": 0.1},
        "grid": {"batch_size": [32, 512], "lr": [0.03, 0.1, 0.3]},
        "seeds": 5,
        **TUNED,
    },
    "gpu": {
        "base": {**studies.GPU, "validation": 5000},
        "grid": {"batch_size": [256, 2048, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8]},
        "seeds": 12,
        **TUNED,
    },
    "paper": {
        "base": {**studies.FULL_SIZE, "validation": 5000},
        "grid": {"batch_size": [256, 1024, 4096, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]},
        "seeds": 12,
        **TUNED,
    },
}

PUBLISHED: Values = {"data": "cifar10", "validation": 5000}


def definition(preset: str) -> Values:
    """Return the study that chooses a rate for each batch size and trains with it."""
    title = "Learning rate tuned for each batch on the validation split"
    return {"title": title, "compare": "batch_size", **STUDIES[preset]}


def inherited(preset: str, rates: Mapping[int, float]) -> Values | None:
    """Return the study of the rate of the smallest batch at the others; None if they chose it."""
    study, (first, *larger) = STUDIES[preset], rates
    batches = [batch for batch in larger if rates[batch] != rates[first]]
    if not batches:
        return None
    return {
        "title": "Larger batches with the learning rate of the smallest",
        "base": {**study["base"], "lr": rates[first]},
        "grid": {"batch_size": batches},
        "seeds": list(range(CHOOSING, study["seeds"])),
    }


def chosen(trials: Iterable[Trial]) -> dict[int, float]:
    """Return the rate of each batch size that validation chose."""
    return {t.cell["batch_size"]: t.cell["lr"] for t in trials if t.reported}


def rows(tuned: Sequence[Trial], others: Sequence[Trial]) -> list[ClaimRow]:
    """Compare test accuracy with the own rate of a batch size and with that of the smallest.

    `others` are the trials with the latter. Batch sizes are judged one by one: at some rates the
    runs of the largest spread many times more than those of the others.
    """
    rates = chosen(tuned)
    first, *larger = rates
    lines = []
    for batch in larger:
        paper = f"batch {batch:,} needs its own rate"
        if rates[batch] == rates[first]:
            text = f"validation chose {rates[batch]} for both"
            lines.append(ClaimRow("J3", paper, text, "no"))
            continue
        arms = {"own": [t for t in tuned if t.reported and t.seed >= CHOOSING], "inherited": others}
        values = {
            (arm,): {
                t.seed: t.accuracy
                for t in trials
                if t.cell["batch_size"] == batch and t.accuracy is not None
            }
            for arm, trials in arms.items()
        }
        level = holds.share_of_level(len(larger))
        (comparison,) = studies.compare_values(
            values, ("rate",), pairs=(("own", "inherited"),), level=level
        ).verdicts
        lines.append(
            ClaimRow(
                "J3",
                paper,
                f"{comparison.difference:+.2f} points on test with {rates[batch]} instead of "
                f"{rates[first]}",
                holds.if_better(comparison),
                studies.corrected(comparison),
                f"{CHOOSING} seeds chose the rates and {comparison.n} others compare them",
            )
        )
    return lines


def reproduce(preset: str, out: Path) -> RecipeResult:
    tuned = studies.run(preset, out / "tuned", **definition(preset)).trials
    rates = chosen(tuned)
    content = inherited(preset, rates)
    others = studies.run(preset, out / "inherited", **content).trials if content else []
    return studies.result(rows(tuned, others), out / "tuned", chosen=rates)


RECIPE = studies.study_recipe(
    "jitsev-validation",
    "J3",
    "hyper-parameters retuned for each batch on a validation split",
    reproduce,
    studies.paper(PUBLISHED, STUDIES),
)
