"""Features to a selection: ours against openTSNE's own fit and scikit-learn, in one run.

    python -m benchmarks.selection_speed --n 50000                 # CPU, minutes to half an hour
    python -m benchmarks.selection_speed --device cuda --million   # GPU, seconds

The CPU run makes the same 512-wide features into (a) our selection, PCA to Parquet, (b)
openTSNE's own fit on the same principal components and (c) scikit-learn's PCA, TSNE and
DBSCAN per class. Wall time says what a person waits; CPU time does not see who else uses the
machine. Divergences are of the three maps under the same exact affinities.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe, publish_json
from benchmarks.tsne_gpu import features, principal_start
from thresher.select.affinities import affinities, conditional, symmetric
from thresher.select.filters.network import NetworkFilter
from thresher.select.neighbours import approximate_neighbours, neighbours
from thresher.select.pca import fit_pca
from thresher.select.tsne import descend, divergence

DROP = 0.05


def labels_of(n: int, d: int, seed: int = 0) -> np.ndarray:
    """The class (one of 10, five modes each) of every row of `features(n, d, seed)`: its
    generator's draws again."""
    random = np.random.Generator(np.random.Philox(seed))
    random.standard_normal((50, d), dtype=np.float32)
    random.standard_normal((n, d), dtype=np.float32)
    random.gamma(4, 0.25, (n, 1))
    return random.integers(0, 50, n) % 10


def select(x: np.ndarray, labels: np.ndarray, device: str) -> NetworkFilter:
    """The whole way, to a file."""
    from thresher.data.selection import Selection

    ids = [f"sample-{n:07}" for n in range(len(x))]
    found = NetworkFilter(drop=DROP, device=device).fit(x, labels, ids=ids)
    with tempfile.TemporaryDirectory() as folder:
        Selection(
            ids, labels, found.keep_, found.score_, found.reason_, "",
            x=found.reduction_.points[:, 0], y=found.reduction_.points[:, 1],
            cluster=found.cluster_,
        ).save(Path(folder) / "S.parquet")  # fmt: skip
    return found


def timed(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    spent = time.perf_counter() - wall, time.process_time() - cpu
    return result, {"wall_s": round(spent[0], 3), "cpu_s": round(spent[1], 3)}


def by_open_tsne(z: np.ndarray) -> np.ndarray:
    from openTSNE import TSNE

    return np.asarray(TSNE(perplexity=30, n_jobs=2, random_state=0).fit(z))


def by_scikit_learn(x: np.ndarray, labels: np.ndarray, eps: float) -> np.ndarray:
    from sklearn.cluster import DBSCAN
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    z = PCA(50, random_state=0).fit_transform(x)
    y = TSNE(perplexity=30, random_state=0, n_jobs=2).fit_transform(z)
    for label in np.unique(labels):
        DBSCAN(eps=eps).fit(y[labels == label])
    return y


def on_cpu(n: int, with_sklearn: bool) -> dict[str, Any]:
    x, labels = features(n, 512), labels_of(n, 512)
    components = fit_pca(x, 50)
    z = components.project(x)
    maps: dict[str, np.ndarray] = {}
    report: dict[str, Any] = {"n": n}
    found, report["ours"] = timed(lambda: select(x, labels, "cpu"))
    maps["ours"] = found.reduction_.points
    print(json.dumps(report), flush=True)
    maps["openTSNE"], report["openTSNE"] = timed(lambda: by_open_tsne(z.numpy()))
    print(json.dumps(report), flush=True)
    if with_sklearn:
        eps = float(found.report_["eps"])
        y, report["scikit-learn"] = timed(lambda: by_scikit_learn(x, labels, eps))
        maps["scikit-learn"] = y
    p = affinities(z, 30.0)
    for name, y in maps.items():
        report[name]["kl"] = round(float(divergence(p, torch.from_numpy(np.float32(y)))), 5)
        if name != "ours":
            for clock in ("wall_s", "cpu_s"):
                report[name][f"ours_over_{clock}"] = round(
                    report["ours"][clock] / report[name][clock], 3
                )
            report[name]["kl_ours_over"] = round(report["ours"]["kl"] / report[name]["kl"], 4)
    report["ours"]["stages_s"] = {k: round(v, 3) for k, v in found.seconds_.items()}
    return report


def on_gpu(n: int, million: bool) -> dict[str, Any]:
    x, labels = features(n, 512), labels_of(n, 512)
    report: dict[str, Any] = {"n": n, "device": torch.cuda.get_device_name()}
    runs = [timed(lambda: select(x, labels, "cuda")) for _ in range(3)]
    report["runs"] = [
        {**spent, "kl": found.reduction_.kl, "stages_s": found.seconds_} for found, spent in runs
    ]
    first = runs[0][0].reduction_.points.tobytes()
    report["same_bytes"] = all(f.reduction_.points.tobytes() == first for f, _ in runs)
    report["same_choice"] = all(np.array_equal(f.keep_, runs[0][0].keep_) for f, _ in runs)
    if million:
        x, labels = features(1_000_000, 50), labels_of(1_000_000, 50)
        found, spent = timed(lambda: select(x, labels, "cuda"))
        report["million"] = {**spent, "kl": found.reduction_.kl, "stages_s": found.seconds_}
        report["million_neighbours"] = both_neighbours(torch.from_numpy(x).cuda())
    return report


def both_neighbours(x: torch.Tensor, k: int = 90) -> dict[str, Any]:
    """Exact against approximate neighbours of x (n, d): seconds, recall, and KL of both maps.

    Both divergences are under the exact affinities.
    """
    approximate_neighbours(x[: len(x) // 10], k)  # warm-up
    (_, close), approximate = timed(lambda: approximate_neighbours(x, k))
    (distances, true), exact = timed(lambda: neighbours(x, k))
    both = torch.cat([close, true], 1).sort(1).values
    shared = (both[:, 1:] == both[:, :-1]).sum(1).double()
    p = symmetric(true, conditional(distances, 30.0))
    del distances, both
    maps = {"exact": p, "approximate": affinities(x, 30.0)}
    start = principal_start(x)
    phases = [(12.0, 250), (1.0, 500)]
    kl = {name: divergence(p, descend(q, start, phases)[0]) for name, q in maps.items()}
    return {
        "n": len(x),
        "exact_s": exact["wall_s"],
        "approximate_s": approximate["wall_s"],
        "recall": round(float(shared.mean()) / k, 5),
        "lowest_recall_of_a_thousandth": round(float(shared.sort().values[len(x) // 1000]) / k, 3),
        "kl": {name: round(value, 5) for name, value in kl.items()},
        "kl_ratio": round(kl["approximate"] / kl["exact"], 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-sklearn", action="store_true")
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.device == "cuda":
        report = on_gpu(options.n, options.million)
    else:
        report = on_cpu(options.n, not options.no_sklearn)
    publish_json({"machine": describe(), **report}, options.out)


if __name__ == "__main__":
    main()
