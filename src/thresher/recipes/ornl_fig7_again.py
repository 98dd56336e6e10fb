"""Claim O4 (Gahlot et al. 2020, figure 7) at its largest batch, asked again with other seeds.

In the runs of `ornl-fig7` at batch 10,368 with weight decay 0.01, network-filtered data were about
a point above the others, which is not significant among so many comparisons. Here these are the
only two comparisons, and seeds and extractors are others. The rate, 0.1, is what four seeds of
`ornl-fig7` chose on validation images for each of the arms.
"""

from typing import Any

from thresher.recipes.base import ClaimRow
from thresher.recipes.ornl_fig7 import PUBLISHED
from thresher.recipes.ornl_fig7 import STUDIES as FIGURE_7
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

PAIRS = [("network", "full"), ("network", "random")]
GRID = {"selection": ["full", "random", "network"]}


def other_seeds(
    preset: str, extractor: str, seeds: int, draws: int | None, skipped: int = 0, **options: Any
) -> Values:
    """Return a study whose seeds follow the ones of `ornl-fig7`, except the first `skipped`."""
    study = studies.filtered(preset, extractor, GRID, seeds, draws, **options)
    study["steps"]["extractor"]["weight_decay"] = 5e-4  # as in `ornl-fig7`, not the trials'
    first = FIGURE_7[preset]["seeds"] + skipped
    return {**study, "seeds": list(range(first, first + seeds))}


LARGEST: Values = {"batch_size": 10368, "weight_decay": 0.01, "validation": 5000}
STUDIES: dict[str, Values] = {
    "smoke": other_seeds("smoke", "tiny", 4, None, batch_size=480),
    "gpu": other_seeds("gpu", "resnet101", 30, 10, **LARGEST, batch_norm="ghost:1/8"),
    "paper": other_seeds("paper", "resnet101", 30, 10, **LARGEST),
}


def definition(preset: str) -> Values:
    """Return the study: network-filtered data against all, and against randomly filtered data."""
    return {
        "title": "Filtered data at the largest batch, with seeds of its own",
        "compare": "selection",
        "pairs": PAIRS,
        "primary": [f"{arm} - {other}" for arm, other in PAIRS],
        **STUDIES[preset],
    }


def rows(analysis: Analysis, batch: str = "figure 7's largest batch") -> list[ClaimRow]:
    lines = []
    for arm, other in PAIRS:
        comparison = studies.verdict(analysis, arm, other)
        paper = f"{batch}, other seeds: {arm} above {other}"
        measured = studies.named(studies.means(analysis, comparison))
        lines.append(studies.claim_row("O4", paper, measured, comparison, holds.if_better))
    return lines


def settings(of_presets: dict[str, Values]) -> PaperSettings:
    """Return what the paper published, and the settings of the study of each preset."""

    def flat(study: Values) -> Values:
        values = {**studies.settings(study), "seeds": len(study["seeds"])}
        return {name: value for name, value in values.items() if name != "selection"}

    return PaperSettings(PUBLISHED, {preset: flat(study) for preset, study in of_presets.items()})


RECIPE = studies.study_recipe(
    "ornl-fig7-again",
    "O4",
    "figure 7's largest batch again: two comparisons, with other seeds",
    studies.one_study(definition, rows),
    settings(STUDIES),
)
