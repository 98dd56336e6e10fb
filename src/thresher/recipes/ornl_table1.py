"""Claim O1 (Gahlot et al. 2020, table I): the share of images dropped with each extractor.

The paper used scikit-learn's defaults of 2020: t-SNE with rate 200, 1,000 iterations and a random
start, DBSCAN with an eps of 0.5 and five samples. That is what is tested first. The scale of a
t-SNE map depends on the settings of its optimizer, so the same features are also mapped with our
defaults. There, one eps serves all extractors and seeds: that at which all maps together drop the
mean of the paper's five shares. The mean is therefore given, and the differences between extractors
are tested. With both settings, the order of the extractors is compared with the paper's.

Extractors, features and maps are steps of a study whose trials do not run.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from thresher.recipes.base import ClaimRow, RecipeResult, Verdict
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.study import Study
from thresher.study.tasks import Values

if TYPE_CHECKING:
    from thresher.select.cluster import ClassGraph

PUBLISHED = {
    "resnet18": 0.0621,
    "resnet34": 0.0655,
    "resnet50": 0.0734,
    "resnet101": 0.0512,
    "resnet152": 0.0124,
}
"""Shares by extractor, from the shallowest to the deepest."""
MEAN_SHARE = fmean(PUBLISHED.values())
DEFAULT_EPS = 0.5
TSNE = "sklearn-2020"


@dataclass(frozen=True)
class MapKind:
    """A kind of map: t-SNE settings, and how noise is found."""

    title: str
    options: Values
    """Those of the filter that are not its defaults."""
    eps: float | None = None
    """None: the one at which all maps together drop the paper's mean share."""


MAPS = {
    "network-2020": MapKind("t-SNE of 2020", {"tsne": TSNE}, DEFAULT_EPS),
    "network": MapKind("our t-SNE", {}),
}
"""By name of the step."""
MARGIN_POINTS = 1.0
"""A share within this distance of the published one counts as the same."""
ANALYSES = 2 * len(MAPS)
"""Shares, and the order of the extractors, on each kind of map."""

EXTRACTORS: dict[str, tuple[list[str], Values, int]] = {
    "smoke": (["tiny", "resnet20"], {**studies.SMOKE, "batch_size": 64}, 2),
    "gpu": (list(PUBLISHED), {**studies.GPU, "batch_size": 256}, 4),
    "paper": (list(PUBLISHED), {**studies.FULL_SIZE, "workers": 1, "batch_size": 256}, 4),
}
"""Networks from the shallowest to the deepest, training options and seeds of each preset."""


@dataclass(frozen=True)
class MapNoise:
    """Shares of the points of one map that are noise, from 0 to 1."""

    share: float
    """At the eps of all maps with its t-SNE settings."""
    at_default: float
    """At scikit-learn's eps."""
    at_knee: float
    """At the knee of each class's k-distance curve."""
    eps_of_paper: float
    """The eps that drops the share of the paper."""


Noise = Mapping[str, Sequence[MapNoise]]
"""By extractor, the maps of its seeds."""
Points = Mapping[str, Sequence[float]]
"""By extractor, the shares of its seeds in percent."""


def definition(preset: str) -> Values:
    """Return the study: an extractor, its features and both maps for each network and seed."""
    models, base, seeds = EXTRACTORS[preset]
    each: Values = {"each": ["model", "seed"]}
    network = {"do": "select", "filter": "network", "features": "features", "eps": "auto"}
    return {
        "title": "Share dropped by extractor (table I)",
        "base": {key: value for key, value in base.items() if key != "model"},
        "grid": {"model": models, "selection": list(MAPS)},
        "steps": {
            "extractor": {"do": "train", **each},
            "features": {"do": "embed", "run": "extractor", **each},
            **{name: {**network, **kind.options, **each} for name, kind in MAPS.items()},
        },
        "seeds": seeds,
        "executor": studies.EXECUTORS[preset],
    }


def reproduce(preset: str, out: Path) -> RecipeResult:
    study = Study.from_dict(definition(preset), out / "study")
    studies.run_whole(study, steps_only=True)
    models, seeds = study.definition.grid["model"], study.definition.seeds
    lines: list[ClaimRow] = []
    data: Values = {}
    for name, kind in MAPS.items():
        graphs = {m: [_graph(study.output(name, model=m, seed=s)) for s in seeds] for m in models}
        eps = one_eps(graphs) if kind.eps is None else kind.eps
        noise = {m: [_noise(graph, m, eps) for graph in each] for m, each in graphs.items()}
        lines += rows(kind, noise, eps)
        maps = {m: [asdict(one) for one in each] for m, each in noise.items()}
        data[name] = {"eps": eps, "maps": maps}
    return RecipeResult(lines, data)


def _graph(file: Path) -> "ClassGraph":
    from thresher.data.selection import Selection
    from thresher.select.cluster import ClassGraph

    selection = Selection.load(file)
    assert selection.x is not None
    assert selection.y is not None
    return ClassGraph(np.stack([selection.x, selection.y], 1), selection.labels)


def one_eps(graphs: "Mapping[str, Sequence[ClassGraph]]") -> float:
    """Return the eps at which all maps together drop the mean share of the paper."""
    thresholds = np.concatenate([graph.threshold for each in graphs.values() for graph in each])
    return float(np.quantile(thresholds, 1 - MEAN_SHARE, method="inverted_cdf"))


def _noise(graph: "ClassGraph", model: str, eps: float) -> MapNoise:
    share, at_default, at_knee = (
        float(graph.noise(radius).mean()) for radius in (eps, DEFAULT_EPS, graph.eps_knee())
    )
    own = graph.eps_for_share(PUBLISHED.get(model, MEAN_SHARE))
    return MapNoise(share, at_default, at_knee, own)


def rows(kind: MapKind, noise: Noise, eps: float) -> list[ClaimRow]:
    """Return the rows of one kind of map: the share of each extractor, and their order."""
    verdicts = _equal_to_published(noise)
    lines = [
        _share(kind, model, maps, eps, verdicts.get(model, "not enough runs"))
        for model, maps in noise.items()
    ]
    points = {model: [100 * one.share for one in maps] for model, maps in noise.items()}
    if len(points) > 1:
        pairs = _compare_pairs(points)
        if points.keys() == PUBLISHED.keys():
            lines.append(_order(kind, points, pairs))
        lines.append(_deepest(kind, points, pairs))
    return lines


def _equal_to_published(noise: Noise) -> dict[str, Verdict]:
    """Return whether the share is that of the paper, by extractor that the paper has.

    Extractors are judged one by one: those of some spread many times more than those of others.
    """
    pair = ("measured", "paper")
    level = holds.share_of_level(ANALYSES * len(PUBLISHED))
    verdicts: dict[str, Verdict] = {}
    for model in (m for m in noise if m in PUBLISHED):
        measured = {seed: 100 * one.share for seed, one in enumerate(noise[model])}
        paper = dict.fromkeys(measured, 100 * PUBLISHED[model])
        (comparison,) = studies.compare_values(
            {("measured",): measured, ("paper",): paper},
            ("share",),
            pairs=(pair,),
            margin=MARGIN_POINTS,
            level=level,
        ).verdicts
        verdicts[model] = holds.if_equal(comparison)
    return verdicts


def _share(
    kind: MapKind, model: str, maps: Sequence[MapNoise], eps: float, verdict: Verdict
) -> ClaimRow:
    paper = PUBLISHED.get(model)
    says = "not in the paper" if paper is None else f"drops {100 * paper:.2f} %"
    within = "" if paper is None else f"; yes: within {MARGIN_POINTS:g} point of the paper"
    which = "scikit-learn's eps"
    if kind.eps is None:
        which = f"one eps for all, at which all maps together drop {100 * MEAN_SHARE:.2f} %"
    shares = [100 * one.share for one in maps]
    knee, own = fmean(one.at_knee for one in maps), fmean(one.eps_of_paper for one in maps)
    return ClaimRow(
        "O1",
        f"{kind.title}, {model}: {says}",
        f"{fmean(shares):.2f} % at eps {eps:.3g}, {100 * knee:.2f} % at the map's knee",
        verdict,
        f"{min(shares):.2f} … {max(shares):.2f} % over {len(shares)} seeds",
        f"{which}; eps {own:.2f} would drop {100 * (paper or MEAN_SHARE):.2f} %{within}",
        {"eps": eps, "shares": shares},
    )


def _compare_pairs(points: Points) -> Analysis:
    """Compare every two extractors; the first is the one that drops less in the paper.

    Of those that are not in the paper, the first is the deeper one.
    """
    least_first = sorted(reversed(list(points)), key=lambda model: PUBLISHED.get(model, 0.0))
    pairs = tuple(itertools.combinations(least_first, 2))
    return studies.compare_values(
        {(model,): dict(enumerate(shares)) for model, shares in points.items()},
        ("model",),
        pairs=pairs,
        better="lower",
        claimed={
            f"{less} - {more}": 100 * (PUBLISHED[less] - PUBLISHED[more])
            for less, more in pairs
            if less in PUBLISHED and more in PUBLISHED
        },
        margin=0.0,  # two extractors of the paper differ by a third of a point
        level=holds.share_of_level(ANALYSES),
    )


def _drops_less(comparison: ArmComparison) -> Verdict:
    """Return whether an extractor drops less than another, by the published difference or not.

    No if it drops more, or if it does not drop less and the published difference is excluded.
    """
    return "yes" if comparison.verdict == "better" else holds.if_better(comparison)


def _order(kind: MapKind, points: Points, pairs: Analysis) -> ClaimRow:
    """Return whether the order of the extractors is the paper's: that of every two of them."""
    verdicts = [_drops_less(comparison) for comparison in pairs.verdicts]
    taus, chance = kendall([PUBLISHED[m] for m in points], np.array(list(points.values())))
    claimed = sorted(points, key=lambda model: PUBLISHED[model])
    measured = sorted(points, key=lambda model: fmean(points[model]))
    return ClaimRow(
        "O1",
        f"{kind.title}, from least to most: {', '.join(claimed)}",
        f"{', '.join(measured)}; Kendall's tau {taus.mean():+.2f}",
        holds.if_all(verdicts),
        f"tau {taus.min():+.2f} … {taus.max():+.2f} over {len(taus)} seeds",
        f"of {len(verdicts)} pairs of extractors, {verdicts.count('yes')} are in the paper's order "
        f"and {verdicts.count('no')} are not (opposite, or the published difference is excluded), "
        "after correction; yes needs all in order, no needs one that is not; "
        f"{100 * chance:.0f} % of all orders have at least this mean tau",
        {"tau": taus.tolist(), "p_permutation": chance},
    )


def kendall(published: Sequence[float], shares: np.ndarray) -> tuple[np.ndarray, float]:
    """Return Kendall's tau of each seed and how often chance is as good.

    Args:
        published: (k,) shares by extractor.
        shares: (k, seeds) measured shares.

    Returns:
        (seeds,) tau, and the share of the k! orders of `published` whose mean tau over the seeds is
        as high: the p-value of a permutation test.
    """
    k = len(published)
    signs = np.sign(np.subtract.outer(published, published))
    measured = np.sign(shares[:, None] - shares[None])
    orders = np.array(list(itertools.permutations(range(k))))
    permuted = signs[orders[:, :, None], orders[:, None]]
    taus = np.einsum("oij,ijs->os", permuted, measured) / (k * (k - 1))
    return taus[0], float((taus.mean(1) >= taus[0].mean() - 1e-9).mean())


def _deepest(kind: MapKind, points: Points, pairs: Analysis) -> ClaimRow:
    """Return whether the deepest network drops less than each of the others."""
    deepest = list(points)[-1]
    tests = [c for c in pairs.verdicts if c.arm == deepest]
    nearest = max(tests, key=lambda c: c.difference)
    shares = [f"{m} {fmean(points[m]):.2f} %" for m in (deepest, nearest.baseline)]
    return ClaimRow(
        "O1",
        f"{kind.title}: the deepest network, {deepest}, drops least",
        f"{shares[0]}, the least of the others {shares[1]}",
        holds.if_all(map(_drops_less, tests)),
        studies.corrected(nearest),
        f"the interval is that of {nearest.arm} minus {nearest.baseline}, corrected for all pairs "
        "of extractors; yes needs one below 0 for each of the others, no needs a pair that is "
        "opposite or excludes the published difference",
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
            | {"tsne": [TSNE, "ours"], "eps": [DEFAULT_EPS, "one for all maps with our t-SNE"]}
            | {"components": "50 before t-SNE"}
            for preset, (models, base, seeds) in EXTRACTORS.items()
        },
    ),
)
