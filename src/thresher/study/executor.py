"""The interface of everything that runs tasks: in this process, local workers, SLURM."""

import abc
from collections.abc import Sequence

from thresher.study.tasks import StudyTask, TaskOutcome


class Executor(abc.ABC):
    """Run tasks. A context manager: leaving it ends its workers (SLURM jobs keep running)."""

    @abc.abstractmethod
    def submit(self, tasks: Sequence[StudyTask]) -> None:
        """Queue tasks whose needs are finished, most urgent first."""

    @abc.abstractmethod
    def wait(self) -> list[TaskOutcome]:
        """Block until a task ends or a short time has passed; each task is returned once."""

    @abc.abstractmethod
    def running(self) -> dict[str, str]:
        """Return the names of the running tasks and where each runs."""

    def close(self) -> None:  # noqa: B027 - an executor without workers has nothing to end
        """End workers and release resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
