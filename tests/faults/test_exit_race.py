"""A worker that leaves while gloo completes a future with a Python callback must not abort.

gloo's thread then takes the interpreter's lock. If the interpreter is being torn down, that ends
the thread in a way that C++ turns into an abort (signal 6): so workers leave through `end`.
"""

import ctypes
import os
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from forks import FORKS

LONG = os.environ.get("THRESHER_FAULTS") == "long"
ROUNDS = 200 if LONG else 20


def _leave_with_a_pending_callback(rank: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    from thresher.distributed import group

    os.environ.update(RANK=str(rank), WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    group.join("cpu")
    dist.barrier()  # or one leaves while the other still connects
    tensor = torch.ones(4_000_000)
    kept = []
    for _ in range(3):
        work = dist.all_reduce(tensor, async_op=True)
        kept.append(work.get_future().then(lambda future: future.value()[0]))
    # The sums are still under way: their callbacks run while this process leaves.
    try:
        group.end(0)
    except SystemExit:
        # What a new interpreter does then; forked processes skip it.
        ctypes.pythonapi.Py_FinalizeEx()
        os._exit(0)


def _start(target: Callable[..., None], store: Path) -> list[BaseProcess]:
    processes: list[BaseProcess] = []
    for rank in range(2):
        process = FORKS.Process(target=target, args=(rank, str(store)))
        process.start()
        processes.append(process)
    return processes


@pytest.mark.slow  # starts forty processes
def test_no_exit_aborts(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        processes = _start(_leave_with_a_pending_callback, tmp_path / f"store-{number}")
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0]
