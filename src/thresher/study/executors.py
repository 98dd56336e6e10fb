"""Choose and build the executor that `[executor]` of a study file describes."""

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher import options
from thresher.errors import InvalidValueError, nearest
from thresher.stopping import keyboard_interrupt
from thresher.study.local import LocalConfig, LocalExecutor
from thresher.study.perform import attempt
from thresher.study.slurm import SlurmConfig, SlurmExecutor
from thresher.study.tasks import Executor, StudyTask, TaskOutcome


@dataclass(frozen=True, kw_only=True)
class InProcessConfig:
    """`[executor]` with kind = "in-process": no options."""


class InProcessExecutor(Executor):
    """Run one task after another in this process, so that breakpoints work."""

    def __init__(self) -> None:
        self.queue: deque[StudyTask] = deque()
        self.now = ""

    def submit(self, tasks: Sequence[StudyTask]) -> None:
        self.queue.extend(tasks)

    def wait(self) -> list[TaskOutcome]:
        if not self.queue:
            return []
        task = self.queue.popleft()
        self.now = task.name
        try:
            outcome = attempt(task)
        finally:
            self.now = ""
        if outcome.stopped and not outcome.error:
            # The signal that made the task save and stop was for this process: the whole study.
            raise keyboard_interrupt(signal.SIGTERM)
        return [outcome]

    def running(self) -> dict[str, str]:
        name = self.now or (self.queue[0].name if self.queue else "")
        return {name: f"process {os.getpid()}"} if name else {}


ExecutorConfig = InProcessConfig | LocalConfig | SlurmConfig
KINDS: dict[str, Callable[..., ExecutorConfig]] = {
    "in-process": InProcessConfig,
    "local": LocalConfig,
    "slurm": SlurmConfig,
}
FORMER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "workers": (0,),
    "threads": (0,),
    "gpus": (-1,),
    "memory_gb": (0, ""),
    "workers_per_node": (0,),
    **dict.fromkeys(("partition", "account", "qos", "constraint"), ("",)),
}
"""Values that meant "default" in study files of version 0.1."""

SET_BY_THRESHER = {"array", "job_name", "nodes", "ntasks", "ntasks_per_node", "signal"}
"""Options of sbatch with which Thresher finds its jobs, sizes them, and has them save in time."""


def executor_settings(stored: Mapping[str, Any], kind: str | None) -> Mapping[str, Any]:
    """Return the keys of `[executor]` of a study file, unless another kind is wanted."""
    return stored if kind in (None, stored.get("kind", "local")) else {"kind": kind}


def executor_config(settings: Mapping[str, Any]) -> ExecutorConfig:
    """Build the configuration from the keys of `[executor]`; `kind` is "local" if missing."""
    values = {
        key: value
        for key, value in settings.items()
        if isinstance(value, bool) or value not in FORMER_DEFAULTS.get(key, ())
    }
    kind = values.pop("kind", "local")
    if kind not in KINDS:
        raise InvalidValueError(f'unknown executor "{kind}"', nearest(str(kind), KINDS))
    config = options.from_mapping(KINDS[kind], values, f"[executor] of kind {kind}")
    if isinstance(config, SlurmConfig) and config.save_seconds >= 60 * config.minutes:
        # SLURM would ask at its first look at the job, within half a minute.
        what = f"save_seconds must be less than the {60 * config.minutes} seconds of `minutes`"
        fix = "raise `minutes`, or lower it"
        raise InvalidValueError(f"{what}, got {config.save_seconds}", fix, "save_seconds")
    for key in config.extra if isinstance(config, SlurmConfig) else ():
        if key.replace("-", "_") in SET_BY_THRESHER:
            fix = "use another option of [executor], or leave it out"
            raise InvalidValueError(f"extra cannot set {key}, which Thresher sets", fix, "extra")
    return config


def make_executor(config: ExecutorConfig, root: Path) -> Executor:
    """Return the executor of a study in the folder `root`."""
    if isinstance(config, LocalConfig):
        return LocalExecutor(root, config)
    return SlurmExecutor(root, config) if isinstance(config, SlurmConfig) else InProcessExecutor()
