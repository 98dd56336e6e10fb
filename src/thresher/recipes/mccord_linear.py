"""Claim M3 (McCord & Dash 2021): at the largest batch the linear rule makes no difference."""

from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult, Verdict
from thresher.recipes.support import mccord, studies

RULES = ["none", "linear"]


def reproduce(preset: str, out: Path) -> RecipeResult:
    size = mccord.BATCHES[preset][-1]
    grid = {"batch_size": [size], "lr_rule": RULES}
    analysis = mccord.run(preset, out, "Linear scaling against none", "lr_rule", grid)
    linear, none = (studies.cell(analysis, lr_rule=rule) for rule in ("linear", "none"))
    difference = studies.compare(linear, none)
    holds: Verdict = "yes" if difference.p_equivalent < 0.05 else "partly"
    holds = "no" if studies.significant(difference) else holds
    note = "no significant difference, but too few runs to exclude a small one"
    row = ClaimRow(
        "M3",
        f"batch {size:,}: linear scaling against none, no significant difference",
        f"linear {studies.mean(linear)}, none {studies.mean(none)}",
        holds,
        studies.interval(*difference.interval),
        note if holds == "partly" else "",
    )
    return studies.result([row], out)


RECIPE = studies.study_recipe(
    "mccord-linear",
    "M3",
    "linear scaling against none at the largest batch",
    reproduce,
    mccord.paper(
        {p: {"batch_size": b[-1:], "lr_rule": RULES} for p, b in mccord.BATCHES.items()},
        {"batch_size": mccord.LARGE_BATCHES[-1:], "lr_rule": RULES},
    ),
    mccord.DATA,
)
