"""Do one task, in whatever process: train a run, embed a data set, select samples.

Every kind goes on where an earlier attempt was stopped, and ends by renaming its result into
place, so that a task is finished exactly when its mark is there.
"""

import dataclasses
import json
from pathlib import Path

from thresher.study.expand import Task
from thresher.training.config import TrainConfig


class Stopped(Exception):
    """The task was asked to stop, has saved what it had, and can be gone on with."""


def to_json(task: Task) -> str:
    """One line, for a worker or a job elsewhere."""
    return json.dumps({**dataclasses.asdict(task), "out": str(task.out)})


def from_json(line: str) -> Task:
    values = json.loads(line)
    return Task(**{**values, "out": Path(values["out"]), "needs": tuple(values["needs"])})


def perform(task: Task, threads: int = 0) -> None:
    """Do `task` unless it is finished; raise Stopped when it was asked to stop before the end.

    `threads` is this task's share of the CPU cores, where its settings do not say.
    """
    if task.finished:
        return
    if task.kind == "train":
        _train(task, threads)
    elif task.kind == "embed":
        from thresher.study.selecting import embed

        embed(task.settings, task.out)
    else:
        from thresher.study.selecting import select

        select(task.settings, task.out)
    if not task.finished:
        raise Stopped(task.name)


def _train(task: Task, threads: int) -> None:
    from thresher.study.training import train

    settings = {"threads": threads, **task.settings, "out": str(task.out), "resume": True}
    train(TrainConfig.from_dict(settings))
