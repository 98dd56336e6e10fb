"""What a study has to do: tasks (steps and trials), their plan and outcome, and who runs them."""

import abc
import contextlib
import dataclasses
import json
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from thresher.errors import ThresherError
from thresher.paths import RunPaths, read_run_json

Values = dict[str, Any]
"""Values from a TOML or JSON file, by name."""
TaskKind = Literal["train", "embed", "select", "command"]
IN_QUEUE = frozenset(
    f"SLURM: {state}"
    for state in ("pending", "requeued", "requeue_hold", "requeue_fed", "special_exit")
)
"""Where submitted tasks are, as `Executor.running` says before a reason, that do not run yet."""


@dataclass(frozen=True)
class StudyTask:
    """One step or trial of a study."""

    name: str
    kind: TaskKind
    settings: Values
    """JSON values: the training, embedding or filter options, or the arguments of a command."""
    out: Path
    """The run folder, the features folder, the selection's .parquet file, or the trial's folder."""
    identity: str
    """Digest of everything that changes the result."""
    needs: tuple[str, ...] = ()
    """Names of the steps whose outputs this task reads."""
    cell: Values | None = None
    """Values of the axes for a trial; None for a step."""
    seed: int | None = None
    step: str = ""
    """Name of the step in the study file; "" for a trial."""
    at: Values = field(default_factory=dict)
    """Values of the axes in `each` that this instance of a step belongs to."""

    @property
    def is_trial(self) -> bool:
        return self.cell is not None

    @property
    def workers(self) -> int:
        """Number of processes that the task trains with."""
        return int(self.settings.get("workers") or 1) if self.kind == "train" else 1

    @property
    def mark(self) -> Path:
        """The file that exists once the task is finished; it is renamed into place."""
        if self.kind in ("train", "command"):
            return self.out / "result.json"
        return self.out / "features.json" if self.kind == "embed" else self.out

    @property
    def finished(self) -> bool:
        return self.mark.exists()

    @property
    def result(self) -> Values:
        """What a run or a command reported in the end; {} if it is not finished."""
        return dict(read_run_json(self.mark, "run's result")) if self.finished else {}

    @property
    def recorded(self) -> Values:
        """What a run recorded when it began, in run.json: its options, data and network; {} if it
        did not."""
        with contextlib.suppress(ThresherError):
            return dict(read_run_json(RunPaths(self.out).config, "run's configuration"))
        return {}

    @property
    def recorded_data(self) -> Values:
        """What a run recorded about its data, such as the number of test images; {} if it did
        not."""
        data = self.recorded.get("data")
        return data if isinstance(data, dict) else {}

    def texts(self, keys: Iterable[str]) -> list[tuple[str, str]]:
        """Return (key, text) of each value, or item of a list, of the settings under `keys`."""
        values = [(key, self.settings.get(key) or []) for key in keys]
        lists = [(key, value if isinstance(value, list) else [value]) for key, value in values]
        return [(key, str(item)) for key, items in lists for item in items]

    @property
    def cost(self) -> float:
        """Estimate the relative duration, to start long tasks first.

        A model costs the number in its name (resnet50: 50), a step as much as 500 more samples.
        """
        if self.kind != "train":
            return 0.0
        depth = re.search(r"(\d+)", str(self.settings.get("model", "")))
        size = float(depth.group(1)) if depth else 1.0
        batch = float(self.settings.get("batch_size", 128)) or 1.0
        return float(self.settings.get("epochs", 10.0)) * size * (1 + 500 / batch)

    def to_json(self) -> str:
        """Return the task as one line of JSON, for a worker or a SLURM job."""
        return json.dumps({**dataclasses.asdict(self), "out": str(self.out)})

    @classmethod
    def from_json(cls, line: str) -> "StudyTask":
        values = json.loads(line)
        return cls(**{**values, "out": Path(values["out"]), "needs": tuple(values["needs"])})


@dataclass(frozen=True)
class StudyPlan:
    """Every step and trial of a study by name; a step comes before the tasks that need it."""

    steps: dict[str, StudyTask]
    trials: dict[str, StudyTask]

    @property
    def tasks(self) -> dict[str, StudyTask]:
        return {**self.steps, **self.trials}


@dataclass(frozen=True)
class TaskOutcome:
    """How an attempt at a task ended. Without `error` and `stopped`, it finished."""

    name: str
    error: str = ""
    detail: str = ""
    """The traceback, or the end of the log."""
    stopped: bool = False
    """Whether the task saved its state on request, or another process has it: it can be resumed."""
    killed: bool = False
    """Whether a signal from outside ended the process of the task."""
    remarks: Sequence[str] = ()
    """What the task warned of, which is otherwise only in its log."""


class TaskStopped(Exception):
    """The task was asked to stop and saved its state; it can be resumed."""


def killed_from_outside(code: int) -> bool:
    """Return whether a process with this exit code was ended by somebody else.

    The kernel's out-of-memory killer counts, too. A crash, such as SIGSEGV, does not.
    """
    return -code in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
        """Return the names of running tasks and where each runs; those `IN_QUEUE` do not yet."""

    def close(self) -> None:  # noqa: B027 - an executor without workers has nothing to end
        """End workers and release resources."""

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
