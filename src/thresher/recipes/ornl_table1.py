"""Claim O1 (Gahlot et al. 2020, table I): the share of images dropped with each extractor.

The paper used scikit-learn's defaults of 2020: t-SNE with rate 200, 1,000 iterations and a random
start, DBSCAN with an eps of 0.5 and five samples. That is what is tested. The scale of a t-SNE map
depends on the settings of its optimizer, so the table also gives the share at the knee of the map's
k-distance curve, and the eps that drops the paper's share.
"""

from pathlib import Path

import numpy as np

from thresher.paths import RunPaths, read_json
from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.comparisons import ArmComparison
from thresher.study.study import Study
from thresher.study.tasks import Values

PUBLISHED = {
    "resnet18": 0.0621,
    "resnet34": 0.0655,
    "resnet50": 0.0734,
    "resnet101": 0.0512,
    "resnet152": 0.0124,
}
DEFAULT_EPS = 0.5
TSNE = "sklearn-2020"
MARGIN_POINTS = 1.0
"""A share within this distance of the published one counts as the same."""

EXTRACTORS: dict[str, tuple[list[str], Values, int]] = {
    "smoke": (["tiny", "resnet20"], {**studies.SMOKE, "batch_size": 64}, 2),
    "gpu": (list(PUBLISHED), {**studies.GPU, "batch_size": 256}, 4),
    "paper": (list(PUBLISHED), {**studies.FULL_SIZE, "workers": 1, "batch_size": 256}, 4),
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.data.selection import Selection
    from thresher.select.cluster import ClassGraph

    models, base, seeds = EXTRACTORS[preset]
    definition = {
        "title": "Share dropped by extractor (table I)",
        "base": base,
        "grid": {"model": models},
        "seeds": seeds,
        "executor": studies.EXECUTORS[preset],
    }
    study = Study.from_dict(definition, out / "extractors")
    studies.run_whole(study)
    shares: dict[str, list[tuple[float, float, float]]] = {model: [] for model in models}
    for trial in study.plan().trials.values():
        assert trial.cell is not None
        model = trial.cell["model"]
        file = out / f"{trial.name},tsne={TSNE}.parquet"
        selection = Selection.load(_select(trial.out, base["data"], file))
        assert selection.x is not None
        assert selection.y is not None
        graph = ClassGraph(np.stack([selection.x, selection.y], 1), selection.labels)
        eps = float(graph.eps_for_share(PUBLISHED.get(model, 0.05)))
        noise = float(graph.noise(DEFAULT_EPS).mean())
        shares[model].append((selection.dropped / len(selection.ids), noise, eps))
    return RecipeResult(rows(shares), {"shares": shares, "default_eps": DEFAULT_EPS})


def _select(run: Path, data: str, file: Path) -> Path:
    """Select at the eps of the map's knee, unless the file exists."""
    from thresher.study.selecting import embed, select

    if not file.exists():
        features = run / "features"
        read_json(RunPaths(run).result, "finished run")  # raises if the run failed
        embed({"data": data, "run": str(run)}, features)
        network = {"filter": "network", "features": str(features), "eps": "auto", "tsne": TSNE}
        select({"data": data, **network}, file)
    return file


def rows(shares: dict[str, list[tuple[float, float, float]]]) -> list[ClaimRow]:
    """Return a row per extractor, from shares at the knee and at the default eps, and the eps that
    would drop the paper's share, of each seed."""
    published = {model: PUBLISHED[model] for model in shares if model in PUBLISHED}
    values: dict[tuple[str, str], dict[int, float]] = {}
    for model, share in published.items():
        values[model, "measured"] = {s: 100 * row[1] for s, row in enumerate(shares[model])}
        values[model, "published"] = dict.fromkeys(values[model, "measured"], 100 * share)
    verdicts = {}
    if values:
        pair = ("measured", "published")
        analysis = studies.compare_values(
            values,
            ("model", "share"),
            compare="share",
            pairs=(pair,),
            margin=MARGIN_POINTS,
            primary=tuple(studies.in_each_cell([pair], {"model": list(published)})),
        )
        verdicts = {c.cell["model"]: c for c in analysis.verdicts if c.cell}
    return [_row(model, np.array(each), verdicts.get(model)) for model, each in shares.items()]


def _row(model: str, shares: np.ndarray, comparison: ArmComparison | None) -> ClaimRow:
    """Summarize shares, (seeds, 3): at the knee, at the default eps, and the eps of the paper."""
    paper = PUBLISHED.get(model)
    knee, default, eps = shares.mean(0)
    low, high = shares[:, 1].min(), shares[:, 1].max()
    within = f"; yes: within {MARGIN_POINTS:g} point of the paper" if paper else ""
    return ClaimRow(
        "O1",
        f"{model} drops {100 * paper:.2f} %" if paper else f"{model}: not in the paper",
        f"{100 * default:.2f} % at eps 0.5, {100 * knee:.2f} % at the map's knee",
        holds.if_equal(comparison) if comparison else "not enough runs",
        f"{100 * low:.2f} … {100 * high:.2f} % over {len(shares)} seeds",
        f"eps {eps:.2f} would drop {100 * (paper or 0.05):.2f} %{within}",
    )


RECIPE = studies.study_recipe(
    "ornl-table1",
    "O1",
    "the share of images that is noise on each extractor's map",
    reproduce,
    PaperSettings(
        {**studies.PAPER, "workers": 1, "model": list(PUBLISHED), "tsne": TSNE, "eps": DEFAULT_EPS},
        {
            preset: {**base, "model": models, "seeds": seeds}
            | {"tsne": TSNE, "eps": DEFAULT_EPS, "components": "50 before t-SNE"}
            for preset, (models, base, seeds) in EXTRACTORS.items()
        },
    ),
)
