"""Claim O1 (Gahlot et al. 2020, table I): how much each extractor's map drops.

The scale of a t-SNE map depends on the optimiser's settings, so DBSCAN's default eps of 0.5, which
the paper used, means nothing by itself: beside the share at that eps we give the share at the eps
that the map itself suggests (the knee of its k-distance curve), and the eps at which the paper's
share would be dropped.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thresher.paths import RunPaths, read_json
from thresher.recipes.base import Recipe, RecipeResult, row
from thresher.recipes.studies import DATA, EXECUTORS, GPU, PAPER, SMOKE
from thresher.study.study import Study

PUBLISHED = {
    "resnet18": 0.0621,
    "resnet34": 0.0655,
    "resnet50": 0.0734,
    "resnet101": 0.0512,
    "resnet152": 0.0124,
}
DEFAULT_EPS = 0.5

EXTRACTORS: dict[str, tuple[list[str], dict[str, Any], int]] = {
    "smoke": (["tiny", "resnet20"], {**SMOKE, "batch_size": 64}, 2),
    "gpu": (list(PUBLISHED), {**GPU, "batch_size": 256}, 2),
    "paper": (list(PUBLISHED), {**PAPER, "workers": 1, "batch_size": 256}, 4),
}


def reproduce(preset: str, out: Path) -> RecipeResult:
    from thresher.data.selection import Selection
    from thresher.select.cluster import ClassGraph

    models, base, seeds = EXTRACTORS[preset]
    grid = {"model": models}
    content = {
        "title": "Share dropped by extractor (table I)",
        "base": base,
        "grid": grid,
        "seeds": seeds,
        "executor": EXECUTORS[preset],
    }
    study = Study.make(content, out / "extractors")
    study.run()
    shares: dict[str, list[tuple[float, float, float]]] = {model: [] for model in models}
    for task in study.plan().trials.values():
        assert task.cell is not None
        model = task.cell["model"]
        selection = Selection.load(_map(task.out, base["data"], out / f"{task.name}.parquet"))
        assert selection.x is not None
        assert selection.y is not None
        graph = ClassGraph(np.stack([selection.x, selection.y], 1), selection.labels)
        wanted = PUBLISHED.get(model, 0.05)
        shares[model].append(
            (
                selection.dropped / len(selection.ids),
                float(graph.noise(DEFAULT_EPS).mean()),
                float(graph.eps_for_share(wanted)),
            )
        )
    rows = [_line(model, np.array(found)) for model, found in shares.items()]
    return RecipeResult(rows, {"shares": shares, "default_eps": DEFAULT_EPS})


def _map(run: Path, data: str, file: Path) -> Path:
    """The selection at the map's own eps, made once."""
    from thresher.study.selecting import embed, select

    if not file.exists():
        features = run / "features"
        if not RunPaths(run).result.exists():
            read_json(RunPaths(run).result, "finished run")
        embed({"data": data, "run": str(run)}, features)
        select({"data": data, "filter": "network", "features": str(features), "eps": "auto"}, file)
    return file


def _line(model: str, found: np.ndarray) -> dict[str, Any]:
    paper = PUBLISHED.get(model)
    knee, default, eps = found.mean(0)
    low, high = found[:, 0].min(), found[:, 0].max()
    if paper is None:
        holds = "not enough runs"
    else:
        holds = "yes" if low <= paper <= high else "partly" if abs(knee - paper) < 0.02 else "no"
    return row(
        "O1",
        f"{model} drops {100 * paper:.2f} %" if paper else f"{model}: not in the paper",
        f"{100 * knee:.2f} % at the map's knee, {100 * default:.1f} % at eps 0.5",
        holds,
        f"{100 * low:.2f} … {100 * high:.2f} % over {len(found)} seeds",
        f"eps {eps:.2f} would drop {100 * (paper or 0.05):.2f} %",
    )


RECIPE = Recipe(
    "ornl-table1",
    "O1",
    "the share of images that each extractor's map calls noise",
    {name: partial(reproduce, name) for name in EXTRACTORS},
    DATA,
)
