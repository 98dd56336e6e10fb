"""Claim M3 (McCord & Dash 2021): at the largest batch the linear rule makes no difference."""

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import holds, mccord, studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

RULES = ["none", "linear"]


def definition(preset: str) -> Values:
    """Return the study: linear scaling against none at the largest batch."""
    grid = {"batch_size": mccord.BATCHES[preset][-1:], "lr_rule": RULES}
    return {**mccord.study(preset, "Linear scaling against none", grid), "compare": "lr_rule"}


def rows(analysis: Analysis) -> list[ClaimRow]:
    (comparison,) = analysis.verdicts
    batch = comparison.cell["batch_size"]
    paper = f"batch {batch:,}: linear scaling against none, no significant difference"
    measured = studies.named(studies.means(analysis, comparison))
    return [studies.claim_row("M3", paper, measured, comparison, holds.if_equal)]


RECIPE = mccord.recipe(
    "mccord-linear",
    "M3",
    "linear scaling against none at the largest batch",
    definition,
    rows,
    {"batch_size": mccord.LARGE_BATCHES[-1:], "lr_rule": RULES},
)
