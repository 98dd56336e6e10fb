"""Claim O4 (Gahlot et al. 2020, figure 7) at the batch for which it gives numbers, asked again.

At batch 6,272 with weight decay 0.005 the paper has 77.5 % with network-filtered data and 75.2 %
with all. In the sixteen runs of `ornl-fig7` network was 1.3 points above full, which neither shows
a gain nor excludes the paper's. Here these are the only two comparisons, and seeds and extractors
are others. The rate, 0.2, is what four seeds of `ornl-fig7` chose on validation images for each of
the arms.
"""

from thresher.recipes.base import ClaimRow
from thresher.recipes.ornl_fig7 import CLAIMED, FILTERED, LARGE
from thresher.recipes.ornl_fig7_again import definition as again
from thresher.recipes.ornl_fig7_again import other_seeds, settings
from thresher.recipes.ornl_fig7_again import rows as rows_again
from thresher.recipes.support import studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

PUBLISHED: Values = {"batch_size": LARGE, "weight_decay": 0.005, "lr": 0.2, "validation": 5000}
STUDIES: dict[str, Values] = {
    "smoke": other_seeds("smoke", "tiny", 4, None, 4, batch_size=64),
    # Twenty extractors, of which no seed is among those of `ornl-fig7-again`.
    "gpu": other_seeds("gpu", "resnet101", 60, 20, 30, **PUBLISHED, batch_norm="ghost:1/8"),
    "paper": other_seeds("paper", "resnet101", 60, 20, 30, **PUBLISHED),
}


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against all, and against randomly filtered data."""
    claimed = {" - ".join(FILTERED): CLAIMED}
    return {
        **again(preset),
        "title": f"Filtered data at batch {LARGE:,}, with seeds of its own",
        **({} if preset == "smoke" else {"claimed": claimed}),
        **STUDIES[preset],
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    return rows_again(analysis, f"figure 7 at batch {LARGE:,}, weight decay 0.005")


RECIPE = studies.study_recipe(
    "ornl-fig7-published",
    "O4",
    "figure 7 at the batch of its numbers again: two comparisons, with other seeds",
    studies.one_study(definition, rows),
    settings(STUDIES),
)
