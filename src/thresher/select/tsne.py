"""t-SNE on a GPU, with openTSNE's settings and the same bytes for the same seed.

A descent step (spread, convolve, read, attract, move) is captured in a CUDA graph, one per grid
size. Between chunks of steps the host checks the map's range, and takes a finer grid if the
spacing would exceed half a unit. On a CPU the same computation runs in plain torch, as a reference
for tests; openTSNE is faster there.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from thresher.errors import InvalidValueError
from thresher.progress import Bar, bar
from thresher.select.affinities import Affinities
from thresher.select.cuda_source import available
from thresher.select.repulsion import FEW, LARGEST_GRID, Grid, field, smallest_grid
from thresher.select.tsne_kernels import DescentState, Kernels
from thresher.select.tsne_loading import finish_loading

SPACING = 0.5
"""The coarsest grid allowed: the kernel 1/(1+d²) varies over one unit."""
CHUNK = 25
MAX_STEP = 5.0
MOMENTUM = 0.8
Phases = Sequence[tuple[float, int]]
"""Exaggeration of the attraction, and number of iterations with it, of each phase."""


def descend(
    p: Affinities, init: torch.Tensor, phases: Phases, rate: float | None = None, seed: int = 0
) -> tuple[torch.Tensor, float]:
    """Descend from `init` (n, 2) under the affinities `p`; return the map (n, 2) and its KL.

    The learning rate is by default the number of samples divided by the exaggeration in force.
    `seed` only breaks ties: samples that are equal in `init` are separated by a jitter of 1e-6 of
    its deviation. Memory: about 5 kB per sample, plus 2 GiB.
    """
    jitter = torch.randn(init.shape, generator=torch.Generator().manual_seed(seed))
    state = DescentState.start(init + 1e-6 * init.std() * jitter.to(init.device))
    steps: dict[int, Callable[[], None]] = {}
    with bar("t-SNE", sum(count for _, count in phases), "steps") as shown:
        for exaggeration, count in phases:
            state.exaggeration.fill_(exaggeration)
            state.rate.fill_(p.n / exaggeration if rate is None else rate)
            state.update.zero_()
            _run(state, p, count, steps, shown)
    y = state.y - state.y.mean(0)
    return y, divergence(p, y)


def _run(
    state: DescentState, p: Affinities, count: int, steps: dict[int, Callable[[], None]], shown: Bar
) -> None:
    for done in range(0, count, CHUNK):
        # A map that shrinks by orders of magnitude, as few points do, keeps its digits.
        state.y.sub_(state.y.mean(0))
        size = _grid_size(state.y)
        if size not in steps:
            steps[size] = _stepper(state, p, size)
        chunk = min(CHUNK, count - done)
        for _ in range(chunk):
            steps[size]()
        shown.advance(chunk)


def _grid_size(y: torch.Tensor) -> int:
    """Return a power of two whose spacing is at most `SPACING`, with a quarter to spare."""
    span = float((y.amax(0) - y.amin(0)).amax())
    if not math.isfinite(span):
        raise InvalidValueError(
            "the t-SNE map has coordinates that are not finite",
            "check the features, or set a lower learning rate",
        )
    size = smallest_grid(len(y))
    while size < LARGEST_GRID and 1.25 * span / SPACING > size - 8:
        size *= 2
    return size


def _stepper(state: DescentState, p: Affinities, size: int) -> Callable[[], None]:
    """Return a function that does one step of the descent on a grid of `size`²."""
    grid = Grid(size, state.y.device)
    if state.y.device.type == "cuda" and p.n > FEW and available():
        kernels = Kernels(p)
        return _captured(lambda: kernels.step(state, grid), state)
    rows, columns = p.rows(), p.column.long()
    return lambda: _step(state, p, rows, columns, grid)


def _captured(step: Callable[[], None], state: DescentState) -> Callable[[], None]:
    """Capture `step` in a CUDA graph; `state` is restored after the warm-up that this needs."""
    finish_loading()
    kept = [t.clone() for t in (state.y, state.update, state.gains)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, before in zip((state.y, state.update, state.gains), kept, strict=True):
        tensor.copy_(before)
    return partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> None:
    """Replay `graph`; `step` holds the grid and scratch arrays, whose memory the graph uses."""
    graph.replay()


def _step(
    state: DescentState, p: Affinities, rows: torch.Tensor, columns: torch.Tensor, grid: Grid
) -> None:
    """Do one step in plain torch."""
    repulsion, z = field(state.y, grid)
    # On a CPU, index_select gathers rows in a fraction of the time that indexing takes.
    apart = state.y.index_select(0, rows) - state.y.index_select(0, columns)
    pull = (p.value / (1 + apart.square().sum(1)))[:, None] * apart
    attraction = torch.segment_reduce(pull, "sum", offsets=p.row_start, axis=0)
    gradient = state.exaggeration * attraction - repulsion / z
    flipped = (state.update > 0) != (gradient > 0)
    state.gains.copy_(torch.where(flipped, state.gains + 0.2, state.gains * 0.8 + 0.01))
    state.update.mul_(MOMENTUM).sub_(state.rate * state.gains * gradient)
    norm = state.update.norm(dim=1, keepdim=True)
    state.update.mul_(MAX_STEP / norm.clamp_min(MAX_STEP))
    state.y.add_(state.update)
    state.z.copy_(z)


def divergence(p: Affinities, y: torch.Tensor) -> float:
    """Return KL(P ‖ Q) of the map `y` (n, 2); the grid of the normaliser adds an error of 5e-5."""
    _, z = field(y, Grid(_grid_size(y), y.device))
    apart2 = (y[p.rows()] - y[p.column.long()]).square().sum(1).double()
    value = p.value.double()
    log_q = -torch.log1p(apart2) - z.double().log()
    # Neighbours that are far away may have a probability of 0, which adds nothing.
    return float((torch.xlogy(value, value) - value * log_q).sum())
