"""When does filtering help? Claim O4 on data with a known share of wrong labels.

The papers filter clean data. Here labels of the training set are changed at random, so that it is
known what a perfect filter would drop (the oracle): with no wrong labels, few and many, at a small
and at a large batch.
"""

from collections.abc import Mapping
from pathlib import Path

from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig7 import PUBLISHED as FIGURE_7
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.tasks import Values

FOUND = "found.json"
"""Which share of the wrong labels each selection drops."""
LEAST_DROP = 0.05
"""Filters drop the share of wrong labels, or this share if fewer labels are wrong."""
SHARES = {"smoke": (0.0, 0.2), "gpu": (0.0, 0.05, 0.2), "paper": (0.0, 0.05, 0.2)}
"""Shares of wrong labels; each is a study."""
PAIRS = [("network", "full"), ("el2n", "full"), ("network", "random"), ("oracle", "full")]
STUDIES: dict[str, Values] = {
    # Enough epochs to memorise wrong labels.
    "smoke": {
        "base": {**studies.SMOKE, "epochs": 30},
        "grid": {"batch_size": [64]},
        "seeds": 4,
    },
    "gpu": {
        "base": studies.GPU,
        "grid": {"batch_size": [1024, 6272]},
        "seeds": 8,
    },
    "paper": {
        "base": studies.FULL_SIZE,
        "grid": {"batch_size": [1024, 6272]},
        "seeds": 8,
    },
}


def definition(preset: str, share: float, data: Path | str, oracle: Path | str) -> Values:
    """Return the study of one share of wrong labels, on the pack `data`.

    All arms take as many steps. `oracle` is the selection without the wrong labels.
    """
    study = STUDIES[preset]
    base = {**study["base"], **studies.EQUAL_STEPS, "data": str(data)}
    drop = max(share, LEAST_DROP)
    own = {"each": ["seed"]}
    extractor = {**study["base"], "data": str(data), "batch_size": 64 if preset == "smoke" else 256}
    early = {**extractor, "epochs": min(10, base["epochs"]), "record_dynamics": True}
    arms = ["full", "random", "network", "el2n"]
    named = {arm: {"selection": arm} if arm != "full" else {} for arm in arms}
    if share:
        named["oracle"] = {"selection": str(oracle)}
    pairs = [pair for pair in PAIRS if pair[0] in named]
    return {
        "title": f"Filtered data with {100 * share:g} % wrong labels",
        "compare": "arm",
        "pairs": pairs,
        "primary": studies.in_each_cell(pairs, study["grid"]),
        "level": holds.share_of_level(len(SHARES[preset])),
        **study,
        "base": base,
        "arms": named,
        "steps": {
            **studies.pipeline(extractor, drop),
            "early": {"do": "train", **early, **own},
            "el2n": {"do": "select", "filter": "el2n", "dynamics": "early", "drop": drop, **own},
        },
    }


def rows(analyses: Mapping[float, Analysis]) -> list[ClaimRow]:
    """Return the rows; `analyses` are by the share of wrong labels."""
    return [
        _row(share, analysis, comparison)
        for share, analysis in analyses.items()
        for comparison in analysis.verdicts
        if comparison.primary
    ]


def _row(share: float, analysis: Analysis, comparison: ArmComparison) -> ClaimRow:
    cell, arms = comparison.cell, f"{comparison.arm} above {comparison.baseline}"
    at = ", ".join(f"batch {value:,}" for value in cell.values()) or "all batches"
    paper = f"our question: {100 * share:g} % wrong labels, {at}: {arms}"
    measured = studies.named(studies.means(analysis, comparison))
    return studies.claim_row("O4", paper, measured, comparison, wrong_labels=share, **cell)


def found(study: Path, oracle: Path) -> dict[str, list[float]]:
    """Return by filter, for each seed, the share of the wrong labels that its selection drops."""
    from thresher.data.selection import Selection

    truth = Selection.load(oracle)
    wrong = {id for id, kept in zip(truth.ids, truth.keep, strict=True) if not kept}
    shares = {}
    for name in ("random", "network", "el2n"):
        files = sorted(study.glob(f"steps/{name},seed=*/selection.parquet"))
        selections = [Selection.load(file) for file in files]
        shares[name] = [
            sum(id in wrong for id, kept in zip(s.ids, s.keep, strict=True) if not kept)
            / len(wrong)
            for s in selections
        ]
    return shares


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.data.flip import ORACLE, FlipOptions, flip_labels
    from thresher.data.pack import Pack
    from thresher.paths import write_json

    clean = Pack.open(STUDIES[preset]["base"]["data"])
    analyses, dropped = {}, {}
    for share in SHARES[preset]:
        folder = out / f"wrong-{100 * share:g}"
        pack = clean
        if share:
            pack = flip_labels(clean, folder / "data", FlipOptions(share=share))
        content = definition(preset, share, pack.root, pack.root / ORACLE)
        analyses[share] = studies.run(preset, folder / "study", **content)
        if share:
            dropped[f"{share:g}"] = found(folder / "study", pack.root / ORACLE)
    write_json(out / FOUND, dropped)
    return studies.result(rows(analyses), folder / "study")


RECIPE = studies.study_recipe(
    "noisy-labels",
    "O4",
    "full, random, network, EL2N and a perfect filter with 0, 5 and 20 % wrong labels",
    reproduce,
    PaperSettings(
        {**FIGURE_7, "wrong_labels": 0},
        {
            preset: {
                **studies.settings({**study, "base": {**study["base"], **studies.EQUAL_STEPS}}),
                "wrong_labels": list(SHARES[preset]),
                "drop": f"the share of wrong labels, at least {LEAST_DROP}",
                "extractor": study["base"]["model"],
                "extractors": "one per seed",
                **studies.OUR_MAP,
            }
            for preset, study in STUDIES.items()
        },
    ),
)
