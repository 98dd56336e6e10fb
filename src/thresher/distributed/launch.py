"""Start a group of workers on this machine under torch's elastic agent, in this process."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from thresher.errors import ThresherError


class Stopped(Exception):
    """The agent was told to stop (SIGTERM, SIGINT); the workers have ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"signal {number}")


def launch(workers: int, argv: Sequence[str], max_restarts: int = 3) -> None:
    """Run `python ARGV…` as `workers` processes until all end well.

    When one dies the agent stops the others and starts the whole group again, at most
    `max_restarts` times; the workers go on from their last checkpoint. SIGTERM and SIGINT go to
    the workers, which save and end; then `Stopped` is raised. SIGUSR1 is passed on as well.
    Raises ThresherError when the group could not be kept alive.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="thresher-") as folder, _environment(folder, workers):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=Path(folder).name,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=max_restarts,
            monitor_interval=0.1,
            local_addr="127.0.0.1",
        )
        previous = signal.signal(signal.SIGUSR1, _PassOn(Path(folder)))
        handlers = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            elastic_launch(config, sys.executable)(*argv)
        except SignalException as error:
            raise Stopped(int(error.sigval)) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise ThresherError(
                f"worker {rank} of {workers} ended with code {failure.exitcode}, and so did the "
                f"group after {max_restarts} restarts",
                "its message stands above; go on with --resume",
            ) from None
        finally:
            signal.signal(signal.SIGUSR1, previous)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def announce() -> None:
    """Called by a worker: die with the agent, and let it find this process for SIGUSR1."""
    folder = os.environ.get("THRESHER_AGENT_FOLDER")
    if folder is None:
        return
    die_with_parent()
    (Path(folder) / f"pid-{os.environ.get('LOCAL_RANK', '0')}").write_text(str(os.getpid()))


def die_with_parent() -> None:
    """On Linux: have the kernel kill this process with its parent, however that ends.

    An agent killed with -9, say, must not leave workers that hold the run's folder.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)


@contextmanager
def _environment(folder: str, workers: int) -> Iterator[None]:
    wanted = {"THRESHER_AGENT_FOLDER": folder}
    if "OMP_NUM_THREADS" not in os.environ:
        wanted["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // workers))
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


class _PassOn:
    """Gives a signal on to the workers that have announced themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, number: int, frame: FrameType | None) -> None:
        for file in self.folder.glob("pid-*"):
            try:
                os.kill(int(file.read_text()), number)
            except (ValueError, ProcessLookupError):
                continue
