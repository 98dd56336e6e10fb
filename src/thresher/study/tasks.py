"""Do one task, in whatever process: train a run, embed a data set, select samples.

Every kind goes on where an earlier attempt was stopped, and ends by renaming its result into
place, so that a task is finished exactly when its mark is there.
"""

import contextlib
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError
from thresher.study.expand import Task
from thresher.train.config import TrainConfig


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
    {"train": _train, "embed": _embed, "select": _select}[task.kind](task, threads)
    if not task.finished:
        raise Stopped(task.name)


def _train(task: Task, threads: int) -> None:
    from thresher.distributed.group import place

    settings = {"threads": threads, **task.settings, "out": str(task.out), "resume": True}
    config = TrainConfig.from_dict(settings)
    if config.workers > 1 and place().world == 1:
        _launch(task, config)
    else:
        from thresher.train.loop import train

        train(config, _pruner(config))


def _launch(task: Task, config: TrainConfig) -> None:
    """Several workers on this machine: the same task in each, under torch's elastic agent."""
    from thresher.distributed import launch

    with tempfile.TemporaryDirectory(prefix="thresher-") as folder:
        file = Path(folder) / "task.json"
        file.write_text(to_json(task), encoding="utf-8")
        with contextlib.suppress(launch.Stopped):
            launch.launch(
                config.workers,
                ["-m", "thresher.study.tasks", str(file)],
                max_restarts=config.max_restarts,
            )


def _pruner(config: TrainConfig) -> Any:
    if config.dynamic == "none":
        return None
    from thresher.select.dynamic import make_pruner

    return make_pruner(config.dynamic)


def _embed(task: Task, threads: int) -> None:
    from thresher.models.features import embed

    embed(out=task.out, **task.settings)


def _select(task: Task, threads: int) -> None:
    from thresher.study.selecting import select

    select(task.settings, task.out)


def main() -> None:
    """One of several workers of one trial: `python -m thresher.study.tasks TASK.json`."""
    from thresher.distributed.launch import announce

    announce()
    task = from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        perform(task)
    except Stopped:
        return
    except ThresherError as error:
        print(f"thresher: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
