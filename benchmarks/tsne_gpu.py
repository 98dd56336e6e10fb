"""Our t-SNE engine on a GPU: seconds by stage, the same bytes twice, a million points.

    python -m benchmarks.tsne_gpu --n 50000 --million --out results.json

Features are a seeded mixture of 10 classes × 5 modes in 512 dimensions with heavy tails, the same
on every machine, so that `benchmarks.tsne_quality` can map the same input with openTSNE on a CPU.
"""

import argparse
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import publish_json
from thresher.select import affinities, tsne
from thresher.select.neighbours import nearest
from thresher.select.repulsion import Grid


def features(n: int, d: int, seed: int = 0) -> np.ndarray:
    """(n, d) float32: modes at random places, with a covariance that decays like a network's."""
    random = np.random.Generator(np.random.Philox(seed))
    modes = random.standard_normal((50, d), dtype=np.float32) * 1.5
    scale = (np.arange(1, d + 1) ** -0.7).astype(np.float32) * 6
    x = random.standard_normal((n, d), dtype=np.float32) * scale
    x *= random.gamma(4, 0.25, (n, 1)).astype(np.float32)
    return x + modes[random.integers(0, 50, n)]


def principal(x: torch.Tensor, k: int) -> torch.Tensor:
    centred = (x - x.mean(0)).double()
    _, vectors = torch.linalg.eigh(centred.T @ centred)
    return (centred @ vectors[:, -k:].flip(1)).float()


def principal_start(x: torch.Tensor) -> torch.Tensor:
    """The first two principal components with a deviation of 1e-4."""
    y = principal(x, 2)
    return 1e-4 * y / y[:, 0].std()


def timed(name: str, function: Callable[[], Any], record: dict[str, float]) -> Any:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begun = time.perf_counter()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    record[name] = round(time.perf_counter() - begun, 4)
    return result


def measure(x: torch.Tensor, iterations: int) -> tuple[dict[str, float], torch.Tensor]:
    record: dict[str, float] = {}
    reduced = timed("pca", lambda: principal(x, 50), record) if x.shape[1] > 50 else x
    k = 90
    distances, indices = timed("neighbours", lambda: nearest(reduced, k), record)
    p = timed(
        "affinities",
        lambda: affinities.symmetric(indices, affinities.conditional(distances, 30.0)),
        record,
    )
    start = timed("start", lambda: principal_start(reduced), record)
    phases = [(12.0, 250), (1.0, iterations)]
    y, kl = timed("descent", lambda: tsne.descend(p, start, phases), record)
    record["total"] = round(sum(record.values()), 4)
    record["kl"] = kl
    record["entries"] = len(p.value)
    record["span"] = float((y.amax(0) - y.amin(0)).amax())
    record["grid"] = tsne._grid_size(y)
    return record, y


def convolve_us(size: int, device: torch.device) -> float:
    """Microseconds of one convolution on a grid of `size`², by events around fifty."""
    grid = Grid(size, device)
    spacing = torch.tensor(0.4, device=device)
    grid.convolve(spacing)
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    for _ in range(50):
        grid.convolve(spacing)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 50 * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    x = torch.from_numpy(features(options.n, 512)).to(device)
    runs = [measure(x, options.iterations) for _ in range(3 if device.type == "cuda" else 1)]
    report: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "n": options.n,
        "runs": [record for record, _ in runs],
        "same_bytes": all(torch.equal(runs[0][1], y) for _, y in runs),
    }
    if device.type == "cuda":
        report["convolve_us"] = {size: convolve_us(size, device) for size in (128, 256, 512, 1024)}
    del runs
    if options.million:
        x = torch.from_numpy(features(1_000_000, 50)).to(device)
        report["million"], _ = measure(x, options.iterations)
    publish_json(report, options.out)


if __name__ == "__main__":
    main()
