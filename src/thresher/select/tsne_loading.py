"""Load the kernels of t-SNE on a GPU and plan its FFTs while neighbours are still computed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from threading import Thread

import torch

from thresher.select.cuda_source import TSNE, available
from thresher.select.repulsion import FEW, Grid, smallest_grid

LARGEST = 1024
"""The largest grid that maps of 50,000 samples need."""
_loading: list[Thread] = []


@contextmanager
def loading(n: int, device: torch.device) -> Iterator[None]:
    """Load what a map of `n` samples needs during the block; nothing is loaded after it."""
    thread = Thread(target=_load, args=(n, device), name="t-SNE kernels")
    _loading.append(thread)
    thread.start()
    try:
        yield
    finally:
        finish_loading()


def finish_loading() -> None:
    """Wait for what was begun: no other thread may load kernels while a CUDA graph is captured."""
    while _loading:
        _loading.pop().join()


def _load(n: int, device: torch.device) -> None:
    # What fails here fails again where it is needed, with a message.
    with suppress(Exception):
        if available() and n > FEW:
            with ThreadPoolExecutor() as pool:
                pool.submit(TSNE.load, torch.zeros((), device=device).device.index)
                pool.submit(_plan, n, device)


def _plan(n: int, device: torch.device) -> None:
    """Use the FFTs of the first grids."""
    size = smallest_grid(n)
    while size <= LARGEST:
        Grid(size, device).convolve(torch.ones((), device=device))
        size *= 2
