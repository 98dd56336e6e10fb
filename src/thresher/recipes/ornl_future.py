"""Claim O8 (Gahlot et al. 2020, future work): filtering recursively, and grid cells.

The paper proposes both without numbers. Each filter is compared with a random selection that drops
as many images of each class.
"""

from thresher.recipes.base import ClaimRow
from thresher.recipes.support import studies
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.tasks import Values

FILTERS: dict[str, tuple[str, Values]] = {
    "recursive": (
        "applying the filter recursively improves it",
        {"filter": "recursive", "run": "extractor", "rounds": 2},
    ),
    "grid": (
        "stratified grid sampling removes noisy data",
        {"filter": "grid", "features": "features", "keep": "dense"},
    ),
}
"""By arm, the claim and the select step."""


def _study(preset: str, extractor: str, batches: list[int], seeds: int) -> Values:
    selections = [arm for name in ("network", *FILTERS) for arm in (name, _control(name))]
    grid = {"batch_size": batches, "selection": selections}
    study = studies.filtered(preset, extractor, grid, seeds)
    for name, (_, step) in FILTERS.items():
        study["steps"] |= {
            name: {"do": "select", "drop": studies.DROP, "each": ["seed"], **step},
            _control(name): {**study["steps"]["random"], "like": name},
        }
    return study


def _control(name: str) -> str:
    return "random" if name == "network" else f"random-{name}"


STUDIES: dict[str, Values] = {
    "smoke": _study("smoke", "tiny", [256], seeds=3),
    "gpu": _study("gpu", "resnet34", [256, 6272], seeds=4),
    "paper": _study("paper", "resnet101", [256, 6272], seeds=4),
}


PAIRS = [
    *((name, _control(name)) for name in ("network", *FILTERS)),
    *((name, "network") for name in FILTERS),
]


def definition(preset: str) -> Values:
    """Return the study: each filter against its control, and the new ones against the paper's."""
    study = STUDIES[preset]
    cells = {"batch_size": study["grid"]["batch_size"]}
    return {
        "title": "Recursive filtering and grid cells (future work)",
        "compare": "selection",
        "pairs": PAIRS,
        "primary": studies.in_each_cell(PAIRS, cells),
        **study,
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    return [_row(analysis, c) for c in analysis.verdicts if c.cell]


def _row(analysis: Analysis, comparison: ArmComparison) -> ClaimRow:
    arm, other, batch = comparison.arm, comparison.baseline, comparison.cell["batch_size"]
    # Only one comparison answers the paper's sentence: "improves it" is about the filter that it
    # proposes to repeat, "removes noisy data" about a choice at random.
    answered = {"recursive": "network", "grid": _control("grid")}
    claim = FILTERS[arm][0] if other == answered.get(arm) else f"{arm} above {other}"
    paper = f"batch {batch:,}, {arm} against {other}: {claim}"
    measured = " against ".join(studies.means(analysis, comparison).values())
    return studies.claim_row("O8", paper, measured, comparison, batch_size=batch)


RECIPE = studies.study_recipe(
    "ornl-future",
    "O8",
    "recursive filtering and grid cells against matched random selections",
    studies.one_study(definition, rows),
    studies.paper({**studies.PAPER, **studies.FILTER}, STUDIES),
)
