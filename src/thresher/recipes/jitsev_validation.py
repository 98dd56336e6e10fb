"""Claim J3 (Jitsev 2021): each batch size needs its own settings, chosen on a validation split."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig5 import UNSCALED
from thresher.recipes.support import studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study import statistics
from thresher.study.results import Trial
from thresher.study.tasks import Values

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, "validation": 0.1},
        "grid": {"batch_size": [32, 512], "lr": [0.03, 0.1, 0.3]},
        "seeds": 3,
        "tune": ["lr"],
    },
    "gpu": {
        "base": {**studies.GPU, **UNSCALED, "validation": 5000},
        "grid": {"batch_size": [256, 2048, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8]},
        "seeds": 4,
        "tune": ["lr"],
    },
    "paper": {
        "base": {**studies.FULL_SIZE, **UNSCALED, "validation": 5000},
        "grid": {"batch_size": [256, 1024, 4096, 8192], "lr": [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]},
        "seeds": 4,
        "tune": ["lr"],
    },
}

PUBLISHED: Values = {"data": "cifar10", "validation": 5000}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    analysis = studies.run(
        preset,
        out,
        title="Learning rate tuned for each batch on the validation split",
        compare="batch_size",
        **study,
    )
    chosen = {c.cell["batch_size"]: c.chosen["lr"] for c in analysis.choices if c.chosen}
    first, *larger = study["grid"]["batch_size"]
    rows = [_retuned(analysis.trials, batch, chosen[batch], chosen[first]) for batch in larger]
    return studies.result(rows, out, chosen=chosen)


def _retuned(trials: list[Trial], batch: int, own: float, inherited: float) -> ClaimRow:
    """Compare test accuracy with the batch's own rate and with that of the smallest batch."""
    paper = f"batch {batch:,} needs its own rate"
    if own == inherited:
        return ClaimRow("J3", paper, f"validation chose {own} for both", "no")
    same = [(t, t.accuracy) for t in trials if t.cell["batch_size"] == batch]
    retuned, kept = (
        {t.seed: a for t, a in same if t.cell["lr"] == lr and a is not None}
        for lr in (own, inherited)
    )
    both = [seed for seed in retuned if seed in kept]
    gain = statistics.paired([retuned[s] for s in both], [kept[s] for s in both], margin=0.3)
    return ClaimRow(
        "J3",
        paper,
        f"{gain.mean:+.2f} points on test with {own} instead of {inherited}",
        studies.holds_if_positive(gain),
        studies.interval(*gain.interval),
    )


RECIPE = studies.study_recipe(
    "jitsev-validation",
    "J3",
    "hyper-parameters retuned for each batch on a validation split",
    reproduce,
    PaperSettings(
        PUBLISHED, {preset: studies.settings(study) for preset, study in STUDIES.items()}
    ),
)
