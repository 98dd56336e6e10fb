"""Dynamic pruning against full data: after as many epochs, and with as many samples.

The papers filter before training. InfoBatch (Qin et al. 2024) and random pruning leave out other
samples in every epoch. A sample of a pruned epoch takes as long as one of a full epoch
(benchmarks/results/dynamic_pruning.md), so that runs with as many samples take as long.
"""

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.tasks import Values

PRUNERS = {"infobatch": "infobatch:0.5", "random": "random:0.3"}
EQUAL = ", equal samples"
ARMS: dict[str, Values] = {
    "full": {},
    **{name: {"dynamic": pruner} for name, pruner in PRUNERS.items()},
    **{f"{name}{EQUAL}": {"dynamic": p, "budget": "samples"} for name, p in PRUNERS.items()},
}
PAIRS = [(arm, "full") for arm in ARMS if arm != "full"]

STUDIES: dict[str, Values] = {
    "smoke": {"base": {**studies.SMOKE, "batch_size": 64}, "seeds": 3},
    "gpu": {"base": {**studies.GPU, "batch_size": 256}, "seeds": 8},
    "paper": {"base": {**studies.FULL_SIZE, "batch_size": 256}, "seeds": 8},
}


def definition(preset: str) -> Values:
    """Return the study: every way of pruning against full data."""
    return {
        "title": "Dynamic pruning against full data",
        "compare": "arm",
        "pairs": PAIRS,
        "primary": studies.in_each_cell(PAIRS, {}),
        "grid": {},
        "arms": ARMS,
        **STUDIES[preset],
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    return [_row(analysis, comparison) for comparison in analysis.verdicts]


def _row(analysis: Analysis, comparison: ArmComparison) -> ClaimRow:
    name = comparison.arm.removesuffix(EQUAL)
    claim = f"after as many epochs, with fewer samples: {name} no worse than full"
    judge = holds.if_no_worse
    if comparison.arm.endswith(EQUAL):
        claim = f"with as many samples, and so as much time: {name} above full"
        judge = holds.if_better
    measured = studies.named(studies.means(analysis, comparison), "; ")
    return studies.claim_row("O4", f"our question: {claim}", measured, comparison, judge)


RECIPE = studies.study_recipe(
    "dynamic-pruning",
    "O4",
    "InfoBatch and random pruning against full data, with as many epochs and as many samples",
    studies.one_study(definition, rows),
    PaperSettings(
        studies.PAPER,
        {
            preset: {
                **studies.settings({**study, "grid": {}}),
                "dynamic": "InfoBatch and random pruning",
            }
            for preset, study in STUDIES.items()
        },
    ),
)
