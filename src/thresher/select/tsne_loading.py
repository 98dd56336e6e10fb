"""Load and compile the kernels of t-SNE on a GPU while features and neighbours are still computed.

The first map on a machine compiles three kernels and plans FFTs of several sizes, about 2.5 s, most
of it outside of Python. Here this happens in threads, on made points.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread

import torch

from thresher.select.affinities import Affinities
from thresher.select.repulsion import FEW, Grid
from thresher.select.tsne_kernels import AVAILABLE, DescentState, Kernels, start_driver
from thresher.startup import finish_triton

SIZES = (128, 256, 512, 1024)
"""Grids that maps of some 10,000 samples need."""
_loading: list[Thread] = []


@contextmanager
def loading(n: int, device: torch.device) -> Iterator[None]:
    """Load what a map of `n` samples needs during the block; nothing is loaded after it."""
    start_loading(n, device)
    try:
        yield
    finally:
        finish_loading()


def start_loading(n: int, device: torch.device) -> None:
    """Begin to load what a map of `n` samples needs."""
    thread = Thread(target=_load, args=(n, device), name="t-SNE kernels")
    _loading.append(thread)
    thread.start()


def finish_loading() -> None:
    """Wait for what was begun: no other thread may load kernels while a CUDA graph is captured."""
    while _loading:
        _loading.pop().join()


def _load(n: int, device: torch.device) -> None:
    # What fails here fails again where it is needed, with a message.
    with suppress(Exception):
        if AVAILABLE and n > FEW:
            with ThreadPoolExecutor() as pool:
                pool.submit(_plan, device)
                finish_triton()
                start_driver()
                for launch in _launches(n, device):
                    pool.submit(launch)


def _plan(device: torch.device) -> None:
    """Use the FFTs of all sizes."""
    for size in SIZES:
        Grid(size, device).convolve(torch.ones((), device=device))


def _launches(n: int, device: torch.device) -> list[Callable[[], None]]:
    """Return functions that launch one kernel each."""
    # Triton compiles for numbers that are multiples of 16, or not.
    few = 2 * FEW + n % 16
    at = torch.arange(few + 1, device=device)
    p = Affinities(at, at[1:].int() % few, torch.full((few,), 1 / few, device=device))
    grid, kernels = Grid(SIZES[0], device), Kernels(p)
    # Not random numbers, which would change those that others draw.
    state = DescentState.start(torch.linspace(0, 1, 2 * few, device=device).view(few, 2))
    place = grid.place(state.y)
    potential = torch.zeros(grid.size, grid.size, device=device)
    return [
        partial(kernels.spread, state.y, grid, place),
        partial(kernels.read, state.y, grid, place, potential),
        partial(kernels.move, state),
    ]
