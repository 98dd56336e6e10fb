"""Start a group of workers on this machine under torch's elastic agent, in this process."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from thresher.environment import core_count
from thresher.errors import ThresherError
from thresher.paths import scratch_folder
from thresher.stopping import Stop, keyboard_interrupt

AGENT_FOLDER = "THRESHER_AGENT_FOLDER"
"""Environment variable: the folder where workers leave their process ids for the agent."""
PARENT = "THRESHER_PARENT"
"""Environment variable: the process id of the agent, with which its workers die."""
LOG_LEVEL = "THRESHER_LOG_LEVEL"
"""Environment variable: the level from which workers print log messages."""


class GroupStopped(KeyboardInterrupt):
    """The agent received a signal, and its workers have ended."""


def launch(workers: int, argv: Sequence[str], max_restarts: int = 3) -> None:
    """Run `python ARGV…` as `workers` processes until all exit with code 0.

    When a worker dies the agent stops the others and restarts the group, at most `max_restarts`
    times; training resumes from its last checkpoint. SIGTERM, SIGINT and SIGHUP are passed to the
    workers, which save and end; GroupStopped is then raised. SIGUSR1 is passed on too.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with scratch_folder("agent") as folder, _environment(folder, workers):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=folder.name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            monitor_interval=0.1,
            local_addr="127.0.0.1",
            logs_specs=DefaultLogsSpecs(str(folder)),  # torch does not remove its own folder
        )
        if hasattr(config, "signals_to_handle"):  # torch 2.9; its handlers of the others raise once
            config.signals_to_handle = "SIGQUIT"
        numbers = (signal.SIGUSR1, signal.SIGQUIT, signal.SIGHUP)
        handlers = {number: signal.getsignal(number) for number in numbers}
        signal.signal(signal.SIGUSR1, partial(_pass_on, folder))

        def stopped(number: int) -> SignalException:
            return SignalException(f"signal {number}", signal.Signals(number))

        try:
            with Stop(stopped, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                elastic_launch(config, sys.executable)(*argv)
        except SignalException as error:
            raise GroupStopped(*keyboard_interrupt(error.sigval).args) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise ThresherError(
                f"worker {rank} of {workers} ended with code {failure.exitcode} after "
                f"{max_restarts} restarts",
                "see its message above",
            ) from None
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def announce() -> None:
    """Tell the agent this worker's process id, so that it can pass SIGUSR1 on."""
    folder = os.environ.get(AGENT_FOLDER)
    if folder is None:
        return
    # Before training listens to the signal there is nothing to save, and no reason to die of it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    (Path(folder) / f"pid-{os.environ.get('LOCAL_RANK', '0')}").write_text(str(os.getpid()))


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed when its parent dies; exit at once if `parent` has died already."""
    if sys.platform.startswith("linux"):
        import ctypes

        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
    elif parent is not None:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if parent is not None and os.getppid() != parent:
        os._exit(1)


@contextmanager
def children_without(*numbers: signal.Signals) -> Iterator[None]:
    """Let processes that are started in the block begin with these signals blocked.

    A terminal sends SIGINT to all processes of a command. One that is still importing would print a
    traceback. What arrives here is delivered when the block is left.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


@contextmanager
def _environment(folder: Path, workers: int) -> Iterator[None]:
    level = logging.getLogger("thresher").getEffectiveLevel()
    wanted = {AGENT_FOLDER: str(folder), PARENT: str(os.getpid()), LOG_LEVEL: str(level)}
    if "OMP_NUM_THREADS" not in os.environ:
        wanted["OMP_NUM_THREADS"] = str(max(1, core_count() // workers))
    if "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform.startswith("linux"):
        # All workers are here: do not depend on what the machine's own name resolves to.
        wanted["GLOO_SOCKET_IFNAME"] = "lo"
    changed = {*wanted, "TORCHELASTIC_SIGNALS_TO_HANDLE"}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _pass_on(folder: Path, number: int, frame: FrameType | None) -> None:
    """Pass a signal on to the workers that have announced themselves."""
    for file in folder.glob("pid-*"):
        with suppress(ValueError, ProcessLookupError):
            os.kill(int(file.read_text()), number)
