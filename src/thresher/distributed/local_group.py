"""Run one command as the ranks of a process group, wait for all, and keep their output.

For measurements: no restarts, no elastic agent (training uses `launch`). A rank may be started
through another command, which is how the test bed places it on a host.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from thresher.distributed.group import join
from thresher.distributed.launch import die_with_parent
from thresher.errors import ThresherError
from thresher.paths import scratch_folder

GRACE_S = 1.0
"""How long the other ranks may run on after one failed: one of them may be the cause."""


class RankPlacement(NamedTuple):
    """Where a rank runs."""

    rank: int
    node: int
    local_rank: int
    local_world: int
    host: str
    prefix: tuple[str, ...] = ()
    """Words put before the rank's command."""


class Rendezvous(NamedTuple):
    """Where the ranks meet, and gloo's network interface."""

    address: str
    port: int
    interface: str


class RankOutput(NamedTuple):
    """What a finished rank left."""

    rank: int
    code: int
    stdout: str
    stderr: str


def run_local(
    workers: int,
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[RankOutput]:
    """Run `argv` as `workers` ranks on this machine; see `run_ranks`."""
    ranks = [RankPlacement(rank, 0, rank, workers, "here") for rank in range(workers)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return run_ranks(ranks, argv, Rendezvous("127.0.0.1", port, "lo"), environment, timeout_s)


@contextmanager
def gloo_group() -> Iterator[None]:
    """Join the group of this rank on the CPU; unlike `join` also a group of one, which DDP needs.

    A barrier at the end keeps the first rank, which hosts the rendezvous, until all are done.
    """
    import torch.distributed as dist

    join("cpu")
    alone = not dist.is_initialized()
    if alone:
        dist.init_process_group("gloo")
    try:
        yield
        dist.barrier()
    finally:
        if alone:
            dist.destroy_process_group()


def run_ranks(
    ranks: Sequence[RankPlacement],
    argv: Sequence[str],
    rendezvous: Rendezvous,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[RankOutput]:
    """Run `argv` as `ranks` with torchrun's variables set, one thread each by default.

    All ranks die with this process. A rank that crashes prints its stack, and its last lines are in
    the error. `environment` adds or overrides variables; ranks are killed after `timeout_s`.
    """
    with scratch_folder("ranks") as folder:
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in ranks:
                variables = {
                    "RANK": rank.rank,
                    "WORLD_SIZE": len(ranks),
                    "LOCAL_RANK": rank.local_rank,
                    "LOCAL_WORLD_SIZE": rank.local_world,
                    "GROUP_RANK": rank.node,
                    "MASTER_ADDR": rendezvous.address,
                    "MASTER_PORT": rendezvous.port,
                    "GLOO_SOCKET_IFNAME": rendezvous.interface,
                    "THRESHER_HOST": rank.host,
                    "OMP_NUM_THREADS": 1,
                    "PYTHONFAULTHANDLER": 1,
                }
                added = {k: str(v) for k, v in variables.items()} | dict(environment or {})
                with (
                    open(folder / f"{rank.rank}.out", "wb") as out,
                    open(folder / f"{rank.rank}.err", "wb") as err,
                ):
                    process = subprocess.Popen(
                        [*rank.prefix, *argv],
                        env=os.environ | added,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                processes.append(process)
            order = _wait(processes, timeout_s)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        outputs = []
        for rank, process in zip(ranks, processes, strict=True):
            files = (folder / f"{rank.rank}.{kind}" for kind in ("out", "err"))
            texts = (file.read_text(errors="replace") for file in files)
            outputs.append(RankOutput(rank.rank, process.returncode, *texts))
    messages: list[str] = []
    for rank_output in [outputs[rank] for rank in order if outputs[rank].code][:3]:
        number, code = rank_output.rank, rank_output.code
        end = f"exited with code {code}"
        if code < 0:
            end = f"was killed by signal {-code} ({signal.Signals(-code).name})"
        last_lines = rank_output.stderr.strip().splitlines()[-1 if messages else -16 :]
        messages += [f"rank {number} of {len(ranks)} {end}:", *last_lines]
    if messages:
        raise ThresherError("\n".join(messages))
    return outputs


def _wait(processes: "list[subprocess.Popen[bytes]]", timeout_s: float) -> list[int]:
    """Wait until all have ended, one has failed, or time is up; return the ranks in that order."""
    end = time.monotonic() + timeout_s
    order: list[int] = []
    while len(order) < len(processes):
        now = [r for r, p in enumerate(processes) if p.poll() is not None and r not in order]
        order += now
        if any(processes[rank].returncode for rank in now):
            end = min(end, time.monotonic() + GRACE_S)
        if time.monotonic() > end:
            if not any(processes[rank].returncode for rank in order):
                raise ThresherError(f"{len(processes)} ranks did not end within {timeout_s:.0f} s")
            break
        time.sleep(0.02)
    return order
