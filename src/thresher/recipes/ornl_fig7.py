"""Claim O4 (Gahlot et al. 2020, figure 7): filtered data at large batches."""

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import Either, PaperSettings, Span
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

LARGE = 6272
"""From this batch on, the paper reports higher accuracy with filtered than with full data."""
CLAIMED = 2.3
"""Points by which filtered data are above full data at that batch: 77.5 against 75.2."""
ANALYSES = 2
"""Accuracy, and the spread of runs."""
FILTERED = ("network", "full")
PLAIN_PAIR = ("network, plain", "full, plain")

ARMS: dict[str, Values] = {
    "full": {},
    "random": {"selection": "random"},
    "network": {"selection": "network"},
}
EPOCHS = "equal epochs"
"""The other reading of the paper's "50 epochs". In the paper both are the same at batch 6,272: its
50,000 and 47,438 images give seven whole batches each. With 5,000 images held out, filtered arms
take six instead of seven."""
PLAIN: Values = {"flip": False, "crop_padding": 0}
"""No mirror images and no shifted ones, except for the place of a crop."""
WITH_PLAIN = {
    **ARMS,
    **{f"{arm}, plain": {**ARMS[arm], **PLAIN} for arm in ("full", "network")},
}
BY_EPOCHS: dict[str, Values] = {
    f"{arm}, {EPOCHS}": {**ARMS[arm], "budget": "epochs"} for arm in ("random", "network")
}
BOTH_READINGS = {**WITH_PLAIN, **BY_EPOCHS}
RATES = [0.05, 0.1, 0.2, 0.4]
"""The paper does not give its rate: it is tuned for each batch size and arm."""
TUNED: Values = {"tune": ["lr"], "tune_seeds": 2}

STUDIES: dict[str, Values] = {
    "smoke": {
        **studies.filtered("smoke", "tiny", {"batch_size": [64, 480]}, seeds=4),
        "arms": WITH_PLAIN,
    },
    # What the paper saw at large batches, as a controlled experiment: local batch norm as on eight
    # GPUs, both weight decays that its text gives, and eight extractors.
    "gpu": {
        **studies.filtered(
            "gpu",
            "resnet101",
            {
                "weight_decay": [0.005, 0.01],
                "batch_size": [4096, LARGE, 10368],
                "lr": [0.05, 0.1, 0.2],
            },
            seeds=16,
            draws=8,
            validation=5000,
            batch_norm="ghost:1/8",
        ),
        "arms": {**ARMS, **BY_EPOCHS},
        "exclude": [{"arm": list(BY_EPOCHS), "batch_size": [4096, 10368]}],
        **TUNED,
        "tune_seeds": 4,  # of two, none may show that some runs end points lower
    },
    "paper": {
        **studies.filtered(
            "paper",
            "resnet101",
            {"batch_size": [256, 1024, 2048, 4096, 6272, 8192, 10368], "lr": RATES},
            seeds=4,
            validation=5000,
            weight_decay=0.005,
        ),
        "arms": BOTH_READINGS,
        **TUNED,
    },
}
for _study in STUDIES.values():
    _study["base"] = {k: v for k, v in _study["base"].items() if k not in _study["grid"]}

PUBLISHED: Values = {
    **studies.PAPER,
    "weight_decay": Either((0.005, 0.01)),
    "batch_size": Span(256, 10368),
    **studies.FILTER,
    "seeds": 4,
}


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against full and randomly filtered data.

    If the paper's batch is among those of the preset, its comparisons are the primary ones.
    """
    study = STUDIES[preset]
    pairs = _pairs(study["arms"])
    plain = [PLAIN_PAIR] if PLAIN_PAIR[0] in study["arms"] else []
    cells = {
        axis: study["grid"][axis]
        for axis in ("weight_decay", "batch_size")
        if axis in study["grid"]
    }
    if LARGE in cells["batch_size"]:
        cells["batch_size"] = [LARGE]
    overall = [FILTERED, *plain] if plain else []
    claimed = studies.in_each_cell([FILTERED], cells) if cells["batch_size"] == [LARGE] else []
    return {
        "title": "Filtered data at large batches (figure 7)",
        "compare": "arm",
        "pairs": [*pairs, *plain],
        "primary": [
            *studies.in_each_cell(pairs, cells),
            *(f"{arm} - {other}" for arm, other in overall),
        ],
        "level": holds.share_of_level(ANALYSES),
        **({"claimed": dict.fromkeys(claimed, CLAIMED)} if claimed else {}),
        **study,
    }


def _pairs(arms: Iterable[str]) -> list[tuple[str, str]]:
    readings = ["", f", {EPOCHS}"] if f"network, {EPOCHS}" in arms else [""]
    return [(f"network{r}", other) for r in readings for other in ("full", f"random{r}")]


def rows(analysis: Analysis) -> list[ClaimRow]:
    run = [c.cell for c in analysis.cells]
    arms = list(dict.fromkeys(cell["arm"] for cell in run))
    cells = [c.cell for c in analysis.cells if c.cell["arm"] == arms[0]]
    cells = [{axis: value for axis, value in cell.items() if axis != "arm"} for cell in cells]
    largest = max(cell["batch_size"] for cell in cells)
    return [
        *(
            _row(analysis, cell, pair, cell["batch_size"] >= min(LARGE, largest))
            for pair in _pairs(arms)
            for cell in cells
            if {**cell, "arm": pair[0]} in run
        ),
        *([_transformations(analysis)] if PLAIN_PAIR[0] in arms else []),
        _spread(analysis),
    ]


def _row(analysis: Analysis, cell: Values, pair: tuple[str, str], better: bool) -> ClaimRow:
    """Compare network-filtered data with another arm; the paper says better, or else equal."""
    arm, other = pair
    batch, decay = cell["batch_size"], cell.get("weight_decay")
    comparison = studies.verdict(analysis, arm, other, **cell)
    judge, paper = holds.if_better, "network above random everywhere"
    if other == "full" and better:
        paper = "network above full" + (" (77.5 against 75.2)" if batch == LARGE else "")
    elif other == "full":
        judge, paper = holds.if_equal, "network and full equal within error bars"
    reading = f" ({EPOCHS})" if EPOCHS in arm else ""
    with_decay = "" if decay is None else f", weight decay {decay}"
    paper = f"batch {batch:,}{with_decay}{reading}: {paper}"
    measured = studies.named(studies.means(analysis, comparison))
    return studies.claim_row("O4", paper, measured, comparison, judge, **cell)


def _transformations(analysis: Analysis) -> ClaimRow:
    """Return whether random transformations make up for the dropped images.

    Then filtered data are no worse than full data with them, and worse without them.
    """
    usual, plain = (studies.verdict(analysis, *pair) for pair in (FILTERED, PLAIN_PAIR))
    no_worse = ("better", "equivalent", "no worse")
    yes = plain.verdict == "worse" and usual.verdict in no_worse
    no = plain.verdict in no_worse or usual.verdict == "worse"
    return ClaimRow(
        "O4",
        "random transformations of the images make up for the dropped ones",
        f"network minus full {usual.difference:+.2f} points with them, {plain.difference:+.2f} "
        "without, over all batch sizes",
        holds.decided(yes, no),
        studies.corrected(plain),
        plain.sentence,
    )


def _spread(analysis: Analysis) -> ClaimRow:
    """Return whether runs vary more at the largest batch, by Levene's test.

    Runs are compared by their distances from the mean of their cell.
    """
    axes = tuple(analysis.cells[0].cell)
    distances = {
        tuple(c.cell[axis] for axis in axes): {
            seed: abs(value - c.mean) * math.sqrt(c.n / (c.n - 1))
            for seed, value in c.values.items()
        }
        for c in analysis.cells
        if c.mean is not None and c.n > 1 and c.cell["arm"] in ARMS
    }
    batches = [c.cell["batch_size"] for c in analysis.cells]
    pair = (max(batches), min(batches))
    compared = studies.compare_values(
        distances,
        axes,
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
        studies.corrected(comparison, " points of mean distance"),
    )


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = STUDIES[preset]
    analysis = studies.run(preset, out / "study", **definition(preset))
    rates = {
        ", ".join(map(str, c.cell.values())): c.chosen["lr"]
        for c in analysis.cells
        if c.chosen is not None
    }
    return studies.result(rows(analysis), out / "study", lr=rates or study["base"]["lr"])


def _settings(study: Values) -> Values:
    both = BY_EPOCHS.keys() <= study["arms"].keys()
    return {**studies.settings(study), "budget": "steps, and epochs" if both else "steps"}


RECIPE = studies.study_recipe(
    "ornl-fig7",
    "O4",
    "full, randomly filtered and network-filtered data from small to large batches",
    reproduce,
    PaperSettings(PUBLISHED, {preset: _settings(study) for preset, study in STUDIES.items()}),
)
