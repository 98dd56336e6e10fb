"""Claim M1 (McCord & Dash 2021): accuracy falls as the batch grows."""

import itertools

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import holds, mccord, studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values


def definition(preset: str) -> Values:
    """Return the study: the largest batch is compared with the smallest, and each with the next
    smaller one."""
    batches = mccord.BATCHES[preset]
    pairs = [(larger, smaller) for smaller, larger in itertools.pairwise(batches)]
    if len(batches) > 2:
        pairs.insert(0, (batches[-1], batches[0]))
    content = mccord.study(preset, "Accuracy against batch size", {"batch_size": batches})
    return {**content, "compare": "batch_size", "pairs": pairs}


def rows(analysis: Analysis) -> list[ClaimRow]:
    lines = []
    for c in analysis.verdicts:
        paper = f"accuracy falls from batch {c.baseline:,} to {c.arm:,}"
        means = studies.means(analysis, c)
        measured = f"{means[c.baseline]} to {means[c.arm]}"
        lines.append(studies.claim_row("M1", paper, measured, c, holds.if_worse))
    return lines


RECIPE = mccord.recipe(
    "mccord-batch",
    "M1",
    "accuracy falls as the batch grows",
    definition,
    rows,
    {"batch_size": mccord.LARGE_BATCHES},
)
