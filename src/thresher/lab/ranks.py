"""Run one command as the ranks of a group, wait for all, and keep what each printed.

For measurements: no restarts, no elastic agent (see `launch` for training). A rank may be started
through another command, which is how the test bed puts it on a host.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.distributed.launch import die_with_parent
from thresher.errors import ThresherError

GRACE_S = 1.0


@dataclass(frozen=True)
class Rank:
    """Where a rank stands; `through` is put before its command."""

    rank: int
    node: int
    local: int
    local_world: int
    host: str
    through: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finished:
    """One rank that has ended."""

    rank: int
    code: int
    stdout: str
    stderr: str


def run_here(
    workers: int,
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[Finished]:
    """Run `argv` as `workers` ranks on this machine."""
    ranks = [Rank(rank, 0, rank, workers, "here") for rank in range(workers)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return run_ranks(ranks, argv, "127.0.0.1", port, "lo", environment, timeout_s)


def run_ranks(
    ranks: Sequence[Rank],
    argv: Sequence[str],
    address: str,
    port: int,
    interface: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[Finished]:
    """Run `argv` as `ranks`, torchrun's variables set; one thread each unless told otherwise.

    When a rank fails, or time is up, the others are ended and a ThresherError gives the last lines
    of the first that failed. All ranks die with this process. A rank that crashes prints its stack.
    """
    with tempfile.TemporaryDirectory(prefix="thresher-ranks-") as name:
        folder = Path(name)
        started: list[subprocess.Popen[bytes]] = []
        try:
            for rank in ranks:
                places = {
                    "RANK": rank.rank,
                    "WORLD_SIZE": len(ranks),
                    "LOCAL_RANK": rank.local,
                    "LOCAL_WORLD_SIZE": rank.local_world,
                    "GROUP_RANK": rank.node,
                    "MASTER_ADDR": address,
                    "MASTER_PORT": port,
                    "GLOO_SOCKET_IFNAME": interface,
                    "THRESHER_HOST": rank.host,
                    "OMP_NUM_THREADS": 1,
                    "PYTHONFAULTHANDLER": 1,
                }
                given = {k: str(v) for k, v in places.items()} | dict(environment or {})
                started.append(_start([*rank.through, *argv], given, folder, rank.rank))
            order = _wait(started, timeout_s)
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        ended = [
            Finished(
                rank.rank,
                process.returncode,
                (folder / f"{rank.rank}.out").read_text(errors="replace"),
                (folder / f"{rank.rank}.err").read_text(errors="replace"),
            )
            for rank, process in zip(ranks, started, strict=True)
        ]
    failed = [ended[rank] for rank in order if ended[rank].code]
    if failed:
        told = [_story(rank, len(ranks), 16 if rank is failed[0] else 1) for rank in failed[:3]]
        raise ThresherError("\n".join(told))
    return ended


def _story(rank: Finished, world: int, lines: int) -> str:
    """How a rank ended and its last lines."""
    tail = "\n".join(rank.stderr.strip().splitlines()[-lines:])
    return f"rank {rank.rank} of {world} {_end(rank.code)}:\n{tail}"


def _end(code: int) -> str:
    """How a rank ended, in words."""
    if code > 0:
        return f"ended with code {code}"
    return f"was ended by signal {-code} ({signal.Signals(-code).name})"


def _start(
    argv: Sequence[str], environment: dict[str, str], folder: Path, rank: int
) -> "subprocess.Popen[bytes]":
    with open(folder / f"{rank}.out", "wb") as out, open(folder / f"{rank}.err", "wb") as err:
        return subprocess.Popen(
            argv,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def _wait(started: "list[subprocess.Popen[bytes]]", timeout_s: float) -> list[int]:
    """Until all have ended, one has failed, or time is up; the ranks in the order of their end.

    When one has failed the others are given a second: they may fail because of it, or it may have
    failed because of one of them that takes longer to end.
    """
    end = time.monotonic() + timeout_s
    order: list[int] = []
    while len(order) < len(started):
        now = [r for r, p in enumerate(started) if p.poll() is not None and r not in order]
        order += now
        if any(started[rank].returncode for rank in now):
            end = min(end, time.monotonic() + GRACE_S)
        if time.monotonic() > end:
            if not any(started[rank].returncode for rank in order):
                raise ThresherError(f"{len(started)} ranks had not ended in {timeout_s:.0f} s")
            break
        time.sleep(0.02)
    return order
