"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from thresher.recipes.base import ClaimRow, RecipeResult, Verdict
from thresher.recipes.support import convergence, holds, studies
from thresher.recipes.support.differences import Either, PaperSettings, Span
from thresher.study.analysis import Analysis
from thresher.study.results import Trial
from thresher.study.tasks import Values

LARGE = 6272
"""From this batch on, the paper reports higher accuracy with filtered than with full data."""
DROP = 0.0512
"""Share dropped with the paper's extractor, ResNet-101 (table I)."""

CLAIMED = 2.3
"""Points by which filtered data are above full data at that batch: 77.5 against 75.2."""
TARGETS = {"smoke": 0.9, "gpu": 0.7, "paper": 0.7}
"""Accuracy to which the speed of convergence is compared; the paper gives none."""
ANALYSES = 5
"""Accuracy, steps and seconds to an accuracy, sharpness, and the spread of runs."""
FILTERED = ("network", "full")
PLAIN_PAIR = ("network, plain", "full, plain")

ARMS: dict[str, Values] = {
    "full": {},
    "random": {"selection": "random"},
    "network": {"selection": "network"},
}
EPOCHS = "equal epochs"
"""The other reading of the paper's "50 epochs": filtered arms take fewer steps, except where the
last, partial batch of an epoch hides it."""
PLAIN: Values = {"flip": False, "crop_padding": 0}
"""No mirror images and no shifted ones, except for the place of a crop."""
WITH_PLAIN = {
    **ARMS,
    **{f"{arm}, plain": {**ARMS[arm], **PLAIN} for arm in ("full", "network")},
}
BOTH_READINGS = {
    **WITH_PLAIN,
    **{f"{arm}, {EPOCHS}": {**ARMS[arm], "budget": "epochs"} for arm in ("random", "network")},
}
RATES = [0.05, 0.1, 0.2, 0.4]
"""The paper does not give its rate: it is tuned for each batch size and arm."""
TUNED: Values = {"tune": ["lr"], "tune_seeds": 2}

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": {**studies.SMOKE, **studies.EQUAL_STEPS},
        "grid": {"batch_size": [64, 480]},
        "arms": WITH_PLAIN,
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
    # The speed of convergence needs an evaluation after every epoch.
    base = {**_study["base"], "evaluate_every": 1}
    if base["data"] == studies.PAPER["data"]:  # on digits it takes longer than the run
        base["sharpness"] = True
    _study["base"] = {k: v for k, v in base.items() if k not in _study["grid"]}

PUBLISHED: Values = {
    **studies.PAPER,
    "weight_decay": Either((0.005, 0.01)),
    "batch_size": Span(256, 10368),
    "extractor": "resnet101",
    "drop": DROP,
    "seeds": 4,
}


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against full and randomly filtered data."""
    study = STUDIES[preset]
    batches = study["grid"]["batch_size"]
    pairs = _pairs(study["arms"])
    claimed = {f"network - full @ batch_size={LARGE}": CLAIMED} if LARGE in batches else {}
    return {
        "title": "Filtered data at large batches (figure 7)",
        "compare": "arm",
        "pairs": [*pairs, PLAIN_PAIR],
        "primary": [
            *studies.in_each_cell(pairs, {"batch_size": batches}),
            *(f"{arm} - {other}" for arm, other in (FILTERED, PLAIN_PAIR)),
        ],
        "level": holds.share_of_level(ANALYSES),
        **({"claimed": claimed} if claimed else {}),
        **study,
    }


def _pairs(arms: Iterable[str]) -> list[tuple[str, str]]:
    readings = ["", f", {EPOCHS}"] if f"network, {EPOCHS}" in arms else [""]
    return [(f"network{r}", other) for r in readings for other in ("full", f"random{r}")]


def rows(analysis: Analysis, trials: dict[str, list[Trial]]) -> list[ClaimRow]:
    """Return the rows; `trials` are those of the same study by steps and time to an accuracy and,
    if measured, by sharpness."""
    batches = sorted({c.cell["batch_size"] for c in analysis.cells})
    large = [b for b in batches if b >= LARGE] or batches[-1:]
    pairs = _pairs([c.cell["arm"] for c in analysis.cells])
    level = holds.share_of_level(ANALYSES)
    metrics = convergence.compare_metrics(trials, "arm", FILTERED, level)
    smoother = [_smoother(metrics.pop("top_eigenvalue"))] if "top_eigenvalue" in metrics else []
    return [
        *(_row(analysis, b, pair, b in large) for pair in pairs for b in batches),
        _transformations(analysis),
        *(_sooner(metric, compared) for metric, compared in metrics.items()),
        *smoother,
        _spread(analysis, batches),
    ]


def _row(analysis: Analysis, batch: int, pair: tuple[str, str], better: bool) -> ClaimRow:
    """Compare network-filtered data with another arm; the paper says better, or else equal."""
    arm, other = pair
    comparison = studies.verdict(analysis, arm, other, batch_size=batch)
    verdict = holds.if_better(comparison)
    paper = "network above random everywhere"
    if other == "full" and better:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
    elif other == "full":
        paper = "network and full equal within error bars"
        verdict = holds.if_equal(comparison)
    reading = f" ({EPOCHS})" if EPOCHS in arm else ""
    cells = [studies.cell(analysis, batch_size=batch, arm=name) for name in pair]
    return ClaimRow(
        "O4",
        f"batch {batch:,}{reading}: {paper}",
        ", ".join(f"{n} {studies.mean(c)}" for n, c in zip(pair, cells, strict=True)),
        verdict,
        studies.interval(comparison.low, comparison.high),
        comparison.sentence,
        {"batch_size": batch},
    )


def _transformations(analysis: Analysis) -> ClaimRow:
    """Return whether random transformations make up for the dropped images.

    Then filtered data are no worse than full data with them, and worse without them.
    """
    usual, plain = (studies.verdict(analysis, *pair) for pair in (FILTERED, PLAIN_PAIR))
    no_worse = ("better", "equivalent", "no worse")
    verdict: Verdict = "not enough runs"
    if plain.verdict in no_worse or usual.verdict == "worse":
        verdict = "no"
    elif plain.verdict == "worse" and usual.verdict in no_worse:
        verdict = "yes"
    return ClaimRow(
        "O4",
        "random transformations of the images make up for the dropped ones",
        f"network minus full {usual.difference:+.2f} points with them, {plain.difference:+.2f} "
        "without, over all batch sizes",
        verdict,
        studies.interval(plain.low, plain.high),
        plain.sentence,
    )


def _sooner(metric: str, analysis: Analysis) -> ClaimRow:
    """Return whether filtered data reach an accuracy in fewer steps, or in less time."""
    comparison = analysis.overall[0]
    arms = [
        [c for c in analysis.cells if c.cell["arm"] == arm]
        for arm in (comparison.arm, comparison.baseline)
    ]
    reached = [f"{sum(c.n for c in a)} of {sum(c.n + len(c.censored) for c in a)}" for a in arms]
    unit = "steps" if metric == "steps_to_target" else "seconds"
    return ClaimRow(
        "O4",
        f"filtering speeds up convergence: {unit} to a given accuracy",
        f"{comparison.difference:+.3g} {unit}; network reaches it in {reached[0]} runs, full in "
        f"{reached[1]}",
        holds.if_better(comparison),
        studies.interval(comparison.low, comparison.high, f" {unit}"),
        comparison.sentence,
    )


def _smoother(analysis: Analysis) -> ClaimRow:
    """Return whether the loss is less sharp at the end of runs on filtered data."""
    comparison = analysis.overall[0]
    means = [
        fmean(c.mean for c in analysis.cells if c.cell["arm"] == arm and c.mean is not None)
        for arm in (comparison.arm, comparison.baseline)
    ]
    return ClaimRow(
        "O4",
        "filtering smooths the loss landscape: top Hessian eigenvalue at the end",
        f"network {means[0]:.3g}, full {means[1]:.3g}, over all batch sizes",
        holds.if_better(comparison),
        studies.interval(comparison.low, comparison.high, ""),
        comparison.sentence,
    )


def _spread(analysis: Analysis, batches: list[int]) -> ClaimRow:
    """Return whether runs vary more at the largest batch, by Levene's test.

    Runs are compared by their distances from the mean of their cell.
    """
    distances = {
        (c.cell["arm"], c.cell["batch_size"]): {
            seed: abs(value - c.mean) * math.sqrt(c.n / (c.n - 1))
            for seed, value in c.values.items()
        }
        for c in analysis.cells
        if c.mean is not None and c.n > 1 and c.cell["arm"] in ARMS
    }
    pair = (batches[-1], batches[0])
    compared = studies.compare_values(
        distances,
        ("arm", "batch_size"),
        compare="batch_size",
        pairs=(pair,),
        margin=0.1 * fmean(value for each in distances.values() for value in each.values()),
        primary=(f"{pair[0]} - {pair[1]}",),
        level=holds.share_of_level(ANALYSES),
    )
    sds = [
        math.sqrt(fmean(c.sd**2 for c in analysis.cells if c.cell["batch_size"] == b and c.sd))
        for b in pair
    ]
    comparison = studies.verdict(compared, *pair)
    return ClaimRow(
        "O4",
        "the variance between runs is higher at larger batches",
        f"standard deviation {sds[1]:.2f} points at {pair[1]:,}, {sds[0]:.2f} at {pair[0]:,}",
        holds.if_better(comparison),
        studies.interval(comparison.low, comparison.high, " points of mean distance"),
    )


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    analysis = studies.run(preset, out / "study", **definition(preset))
    rates = {
        f"{c.cell['batch_size']}, {c.cell['arm']}": c.chosen["lr"]
        for c in analysis.cells
        if c.chosen is not None
    }
    assert analysis.study is not None
    trials = convergence.trials_to(analysis.study, TARGETS[preset])
    lines = rows(analysis, trials)
    return studies.result(lines, out / "study", lr=rates or study["base"]["lr"])


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
