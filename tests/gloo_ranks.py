"""Run a function on n gloo ranks, each a real process, and return what each returned.

Tests that use it run in one worker, `xdist_group("ranks")`, and so share one fork server.
"""

import os
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from forks import FORKS

NOT_JOINED = "connectFullMesh failed"
"""A port that gloo chose may be taken by another test between its choice and its use. Then ranks
fail to connect, or wait for each other."""
JOINED = b""
"""What a rank sends when it is connected with all others."""
JOIN_S = 30
"""Joining takes a second or two, also on a busy machine."""
TRIES = 4
"""Two in a row have failed once."""


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(rank, world, *arguments)` on every rank; a rank that fails fails the test."""
    for left in reversed(range(TRIES)):
        try:
            return _run(world, function, arguments)
        except AssertionError as error:
            if NOT_JOINED not in str(error) or not left:
                raise
            time.sleep(1.0)
    raise AssertionError("not reached")


def _run(world: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    results = FORKS.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            FORKS.Process(
                target=_rank, args=(rank, world, folder, results, function, arguments), daemon=True
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        found: dict[int, Any] = {}
        joined: set[int] = set()
        try:
            while len(found) < world:
                rank, value, error = results.get(timeout=JOIN_S if len(joined) < world else 120)
                assert error is None, f"rank {rank} of {world}:\n{error}"
                joined.add(rank)
                if value != JOINED:
                    found[rank] = pickle.loads(value)
        except queue.Empty:
            why = NOT_JOINED if len(joined) < world else "ranks hang"
            raise AssertionError(f"{why}: only {sorted(found)} of {world} answered") from None
        finally:
            for process in processes:
                process.join(10 if len(found) == world else 0.1)
                if process.is_alive():
                    process.kill()
                    process.join()
    return [found[rank] for rank in range(world)]


def _rank(
    rank: int,
    world: int,
    folder: str,
    results: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        store = dist.FileStore(f"{folder}/store", world)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60)
        )
        results.put((rank, JOINED, None))
        value = function(rank, world, *arguments)
        dist.barrier()
        dist.destroy_process_group()
        # As bytes: a queue would pass tensors by a file descriptor of a process that is gone.
        results.put((rank, pickle.dumps(value), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
