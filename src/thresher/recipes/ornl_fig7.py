"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

LARGE = 6272
"""From this batch on, the paper reports higher accuracy with filtered than with full data."""
DROP = 0.0512
"""Share dropped with the paper's extractor, ResNet-101 (table I)."""

ARMS: dict[str, Values] = {
    "full": {},
    "random": {"selection": "random"},
    "network": {"selection": "network"},
}
EPOCHS = "equal epochs"
"""The other reading of the paper's "50 epochs": filtered arms take fewer steps, except where the
last, partial batch of an epoch hides it."""
BOTH_READINGS = {
    **ARMS,
    **{f"{arm}, {EPOCHS}": {**ARMS[arm], "budget": "epochs"} for arm in ("random", "network")},
}
RATES = [0.05, 0.1, 0.2, 0.4]
"""The paper does not give its rate: it is tuned for each batch size and arm."""
TUNED: Values = {"tune": ["lr"], "tune_seeds": 2}

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, **studies.EQUAL_STEPS},
        "grid": {"batch_size": [64, 480]},
        "arms": ARMS,
        "steps": studies.pipeline({**studies.SMOKE, "batch_size": 64}, DROP),
        "seeds": 4,
    },
    "gpu": {
        "base": {**studies.GPU, **studies.EQUAL_STEPS, "lr_rule": "none", "validation": 5000},
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 10368], "lr": RATES},
        "arms": BOTH_READINGS,
        "steps": studies.pipeline({**studies.GPU, "model": "resnet34", "batch_size": 256}, DROP),
        "seeds": 4,
        **TUNED,
    },
    "paper": {
        "base": {
            **studies.FULL_SIZE,
            **studies.EQUAL_STEPS,
            **{"lr_rule": "none", "validation": 5000, "weight_decay": 0.005},
        },
        "grid": {"batch_size": [256, 1024, 2048, 4096, 6272, 8192, 10368], "lr": RATES},
        "arms": BOTH_READINGS,
        "steps": studies.pipeline(
            {**studies.FULL_SIZE, "model": "resnet101", "batch_size": 256}, DROP
        ),
        "seeds": 4,
        **TUNED,
    },
}
for _study in STUDIES.values():
    _study["base"] = {k: v for k, v in _study["base"].items() if k not in _study["grid"]}

PUBLISHED: Values = {
    **studies.PAPER,
    "weight_decay": 0.005,
    "batch_size": STUDIES["paper"]["grid"]["batch_size"],
    "extractor": "resnet101",
    "drop": DROP,
    "seeds": 4,
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    both = study["arms"] == BOTH_READINGS
    readings = ["", f", {EPOCHS}"] if both else [""]
    pairs = [(f"network{r}", other) for r in readings for other in ("full", f"random{r}")]
    analysis = studies.run(
        preset,
        out / "study",
        title="Filtered data at large batches (figure 7)",
        compare="arm",
        pairs=pairs,
        **study,
    )
    batches = study["grid"]["batch_size"]
    large = [b for b in batches if b >= LARGE] or batches[-1:]
    rows = [_row(analysis, b, pair, b in large) for pair in pairs for b in batches]
    rates = {
        f"{c.cell['batch_size']}, {c.cell['arm']}": c.chosen["lr"]
        for c in analysis.cells
        if c.chosen is not None
    }
    return studies.result(rows, out / "study", lr=rates or study["base"]["lr"])


def _row(analysis: Analysis, batch: int, pair: tuple[str, str], better: bool) -> ClaimRow:
    """Compare network-filtered data with another arm; the paper says better, or else equal."""
    arm, other = pair
    comparison = studies.verdict(analysis, arm, other, batch_size=batch)
    holds = studies.holds_if_better(comparison)
    paper = "network above random everywhere"
    if other == "full" and better:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
    elif other == "full":
        paper = "network and full equal within error bars"
        holds = "partly" if comparison.low <= 0 <= comparison.high else "no"
        if comparison.verdict == "equivalent":
            holds = "yes"
    reading = f" ({EPOCHS})" if EPOCHS in arm else ""
    cells = [studies.cell(analysis, batch_size=batch, arm=name) for name in pair]
    return ClaimRow(
        "O4",
        f"batch {batch:,}{reading}: {paper}",
        ", ".join(f"{n} {studies.mean(c)}" for n, c in zip(pair, cells, strict=True)),
        holds,
        studies.interval(comparison.low, comparison.high),
        comparison.sentence,
        {"batch_size": batch},
    )


def _settings(study: Values) -> Values:
    both = study["arms"] == BOTH_READINGS
    return {**studies.settings(study), "budget": "steps, and epochs" if both else "steps"}


RECIPE = studies.study_recipe(
    "ornl-fig7",
    "O4",
    "full, randomly filtered and network-filtered data from small to large batches",
    reproduce,
    PaperSettings(PUBLISHED, {preset: _settings(study) for preset, study in STUDIES.items()}),
)
