"""Where tasks run: one small interface, and three ways to serve it.

`submit` takes tasks whose needs are met; `wait` gives back what has ended since. In process (for
debugging) a task runs inside `wait`; local workers and SLURM run several at once. The driver in
`study.py` knows no more than this.
"""

import abc
import os
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError, nearest
from thresher.study.expand import Task


@dataclass(frozen=True)
class Ended:
    """A task that is over: `error` is empty when it finished, `stopped` when it may go on."""

    name: str
    error: str = ""
    detail: str = ""
    """The traceback, or the end of the log."""
    stopped: bool = False


class Executor(abc.ABC):
    """Use as a context manager: leaving it ends what it started, unless that lives elsewhere."""

    @abc.abstractmethod
    def submit(self, tasks: Sequence[Task]) -> None:
        """Take tasks, the most urgent first."""

    @abc.abstractmethod
    def wait(self) -> list[Ended]:
        """Block until something has ended (or a moment has passed); at most once per task."""

    @abc.abstractmethod
    def running(self) -> dict[str, str]:
        """Names of the tasks under way, and where each runs."""

    def close(self) -> None:  # noqa: B027 - an executor that holds nothing has nothing to end
        """End workers and let go of resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *trouble: object) -> None:
        self.close()


class InProcess(Executor):
    """One task after another, in this process: breakpoints work, and nothing is hidden."""

    def __init__(self) -> None:
        self.queue: deque[Task] = deque()
        self.now = ""

    def submit(self, tasks: Sequence[Task]) -> None:
        self.queue.extend(tasks)

    def wait(self) -> list[Ended]:
        if not self.queue:
            return []
        task = self.queue.popleft()
        self.now = task.name
        try:
            return [attempt(task)]
        finally:
            self.now = ""

    def running(self) -> dict[str, str]:
        name = self.now or (self.queue[0].name if self.queue else "")
        return {name: f"process {os.getpid()}"} if name else {}


def attempt(task: Task, threads: int = 0) -> Ended:
    """Perform a task and say how it ended; only KeyboardInterrupt and SystemExit get out."""
    from thresher.study.tasks import Stopped, perform

    try:
        perform(task, threads)
    except Stopped:
        return Ended(task.name, stopped=True)
    except ThresherError as error:
        return Ended(task.name, str(error), traceback.format_exc())
    except Exception as error:
        return Ended(task.name, f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        _tidy()
    return Ended(task.name)


def _tidy() -> None:
    """Give back what a trial held, so that the hundredth starts like the first."""
    import gc
    import sys

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


KINDS = ("in-process", "local", "slurm")


def make(settings: dict[str, Any], root: Path) -> Executor:
    """The executor that [executor] of a study asks for; `kind` is local where it is not said."""
    rest = dict(settings)
    kind = rest.pop("kind", "local")
    if kind == "in-process":
        _no_more(rest, set(), kind)
        return InProcess()
    if kind == "local":
        from thresher.study.local import LOCAL_SETTINGS, Local

        _no_more(rest, LOCAL_SETTINGS, kind)
        return Local(root, **rest)
    if kind == "slurm":
        from thresher.study.slurm import Slurm, SlurmSettings

        return Slurm(root, SlurmSettings.from_dict(rest))
    raise ThresherError(f'there is no executor "{kind}"', nearest(str(kind), KINDS))


def _no_more(settings: dict[str, Any], known: set[str], kind: str) -> None:
    for key in settings:
        if key not in known:
            raise ThresherError(f'the executor "{kind}" has no "{key}"', nearest(key, known))
