"""Claim O2 (Gahlot et al. 2020, figures 4 and 5): every rate has its preferred batch size."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import Span
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

STUDIES: dict[str, Values] = {
    "smoke": {
        "base": studies.SMOKE,
        "grid": {
            "model": ["tiny", "resnet20"],
            "lr": [0.01, 0.1],
            "batch_size": [16, 64, 256, 1024],
        },
        "seeds": 3,
    },
    "gpu": {
        "base": studies.GPU,
        "grid": {
            "model": ["resnet18", "resnet50"],
            "lr": [0.01, 0.03, 0.1],
            "batch_size": [16, 64, 256, 1024, 4096, 20480],
        },
        "seeds": 3,
    },
    "paper": {
        "base": studies.FULL_SIZE,
        "grid": {
            "model": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
            "lr": [0.001, 0.01, 0.1],
            "batch_size": [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10240, 20480],
        },
        "seeds": 4,
    },
}

PUBLISHED: Values = {
    **studies.PAPER,
    "model": STUDIES["paper"]["grid"]["model"],
    "batch_size": Span(16, 20480),
}


BEHIND = ("worse", "equivalent")
ANALYSES = 4
"""Batch sizes for each rate and for each network, distances between networks, and falls."""


def definition(preset: str) -> Values:
    """Return the study: at each rate and network, every batch size against the largest."""
    study = STUDIES[preset]
    *smaller, largest = study["grid"]["batch_size"]
    pairs = [(batch, largest) for batch in smaller]
    cells = {axis: study["grid"][axis] for axis in ("model", "lr")}
    return {
        "title": "Accuracy against batch size, by learning rate (figures 4 and 5)",
        "compare": "batch_size",
        "pairs": pairs,
        "primary": studies.in_each_cell(pairs, cells),
        "level": holds.share_of_level(ANALYSES),
        **study,
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    values = {
        (c.cell["model"], c.cell["lr"], c.cell["batch_size"]): c.values for c in analysis.cells
    }
    pairs = dict.fromkeys((model, lr) for model, lr, _ in values)
    return [
        *(_falls(analysis, model, lr) for model, lr in pairs),
        _per_network(values),
        _closer_at_low_rates(values),
        _sudden_if_deep(values),
    ]


def _falls(analysis: Analysis, model: str, lr: float) -> ClaimRow:
    """Return whether some batch size is better than the largest.

    That is half of the claim if the best is the smallest: accuracy was not seen to rise to it.
    """
    axes = {"model": model, "lr": lr}
    cells = [c for c in analysis.cells if axes.items() <= c.cell.items()]
    best = max(cells, key=lambda c: c.mean or 0.0)
    first, *_, last = sorted(cells, key=lambda c: c.cell["batch_size"])
    smallest = ", the smallest of all" if best is first else ""
    tests = [c for c in analysis.verdicts if c.cell == axes]
    shown = max(tests, key=lambda c: c.difference)
    falls = holds.if_any(map(holds.if_better, tests))
    return ClaimRow(
        "O2",
        f"{model}, rate {lr}: a preferred batch, beyond it accuracy falls",
        f"best at {best.cell['batch_size']}{smallest}: {studies.mean(best)}; "
        f"{studies.mean(last)} at {last.cell['batch_size']}",
        "partly" if smallest and falls == "yes" else falls,
        studies.corrected(shown),
        f"the interval is that of {shown.arm} against {shown.baseline}, corrected for "
        f"{shown.comparisons} comparisons; partly if accuracy falls from the smallest on",
    )


def _axes(values: Mapping[tuple[Any, ...], object]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the models, the rates, and the batch sizes that all models were run with."""
    models, rates, batches = (list(dict.fromkeys(key[n] for key in values)) for n in range(3))
    cells = list(itertools.product(models, rates))
    return models, rates, [b for b in batches if all((*cell, b) in values for cell in cells)]


def _per_network(values: Mapping[tuple[Any, ...], Mapping[int, float]]) -> ClaimRow:
    """Return whether networks prefer different batch sizes, averaged over the rates."""
    models, rates, batches = _axes(values)
    means = {
        (model, batch): _mean([values.get((model, lr, batch), {}) for lr in rates])
        for model in models
        for batch in batches
    }
    pairs = tuple(itertools.combinations(batches, 2))
    analysis = studies.compare_values(
        means,
        ("model", "batch_size"),
        compare="batch_size",
        pairs=pairs,
        primary=tuple(studies.in_each_cell(pairs, {"model": models})),
        level=holds.share_of_level(ANALYSES),
    )
    words = {(c.cell["model"], c.arm, c.baseline): c.verdict for c in analysis.verdicts if c.cell}
    opposite = any({words[m, *pair] for m in models} >= {"better", "worse"} for pair in pairs)
    shared = [b for b in batches if all(_leads(words, m, b, batches) for m in models)]
    best = {
        m: max(batches, key=lambda b: studies.cell(analysis, model=m, batch_size=b).mean or 0.0)
        for m in models
    }
    return ClaimRow(
        "O2",
        "each network has its preferred batch",
        ", ".join(f"{model} {batch:,}" for model, batch in best.items()),
        holds.decided(opposite, bool(shared)),
        note="highest mean over the rates; yes needs two batch sizes of which one network is "
        "better with the first and another with the second",
        values={"preferred_batch": best},
    )


def _leads(words: Mapping[tuple[Any, ...], str], model: str, batch: int, all_: list[int]) -> bool:
    """Return whether no batch size is better than `batch`, as far as the margin."""
    for other in all_:
        # The pair is compared in one of both orders.
        leads = words.get((model, batch, other)) in ("better", "equivalent")
        if other != batch and not leads and words.get((model, other, batch)) not in BEHIND:
            return False
    return True


def _mean(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the mean of several runs with the same seed, for seeds that all of them have."""
    return {s: fmean(p[s] for p in parts) for s in parts[0] if all(s in p for p in parts)}


def _closer_at_low_rates(values: Mapping[tuple[Any, ...], Mapping[int, float]]) -> ClaimRow:
    """Compare the range of the networks' accuracies between rates, seed by seed."""
    models, rates, batches = _axes(values)
    apart = {
        (lr,): _mean(
            [_range([values.get((m, lr, batch), {}) for m in models]) for batch in batches]
        )
        for lr in rates
    }
    low, high = min(rates), max(rates)
    analysis = studies.compare_values(
        apart, ("lr",), pairs=((low, high),), level=holds.share_of_level(ANALYSES)
    )
    (comparison,) = analysis.verdicts
    means = {lr: studies.cell(analysis, lr=lr).mean or 0.0 for lr in (low, high)}
    return ClaimRow(
        "O2",
        "the networks' curves are closer at low rates",
        f"{means[low]:.1f} points apart at {low}, {means[high]:.1f} at {high}",
        holds.if_worse(comparison),
        studies.corrected(comparison),
    )


def _sudden_if_deep(values: Mapping[tuple[Any, ...], Mapping[int, float]]) -> ClaimRow:
    """Compare the largest fall from one batch size to the next, of the mean over the rates."""
    models, rates, batches = _axes(values)
    falls = {}
    for model in models:
        curve = [_mean([values.get((model, lr, batch), {}) for lr in rates]) for batch in batches]
        seeds = [s for s in curve[0] if all(s in point for point in curve)]
        steps = list(itertools.pairwise(curve))
        falls[(model,)] = {s: max(before[s] - after[s] for before, after in steps) for s in seeds}
    shallow, deep = models[0], models[-1]
    analysis = studies.compare_values(
        falls, ("model",), pairs=((deep, shallow),), level=holds.share_of_level(ANALYSES)
    )
    (comparison,) = analysis.verdicts
    means = {m: studies.cell(analysis, model=m).mean or 0.0 for m in (shallow, deep)}
    return ClaimRow(
        "O2",
        "accuracy falls suddenly for deep networks, gradually for others",
        f"largest fall between two batch sizes: {deep} {means[deep]:.1f} points, "
        f"{shallow} {means[shallow]:.1f}",
        holds.if_better(comparison),
        studies.corrected(comparison),
    )


def _range(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    shared = [s for s in parts[0] if all(s in p for p in parts)]
    return {s: max(p[s] for p in parts) - min(p[s] for p in parts) for s in shared}


RECIPE = studies.study_recipe(
    "ornl-fig5",
    "O2",
    "for each learning rate there is a preferred batch size",
    studies.one_study(definition, rows),
    studies.paper(PUBLISHED, STUDIES),
)
