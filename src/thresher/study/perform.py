"""Run one task in the current process: train, embed, select, or run a command.

Each kind of task resumes an earlier attempt and renames its result into place at the end, so a
task is finished exactly when its mark exists.
"""

import gc
import logging
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from thresher.distributed.launch import GroupStopped
from thresher.effect import names_shown
from thresher.errors import BusyError, ThresherError
from thresher.study.run_command import CommandError, run_command
from thresher.study.selecting import embed, select
from thresher.study.tasks import StudyTask, TaskOutcome, TaskStopped
from thresher.training.config import TrainConfig
from thresher.training.sharing import release


def perform(task: StudyTask, threads: int | None = None) -> None:
    """Run `task` unless it is finished; `threads` is used if its settings do not say otherwise."""
    if task.finished:
        return
    if task.kind == "train":
        from thresher.training.train import train

        settings = {**task.settings, "out": str(task.out), "resume": True}
        if threads is not None:
            settings.setdefault("threads", threads)
        try:
            train(TrainConfig.from_dict(settings))
        except GroupStopped:
            raise TaskStopped(task.name) from None
    elif task.kind == "command":
        release()
        run_command(task, threads)
    else:
        release()
        (embed if task.kind == "embed" else select)(task.settings, task.out)
    if not task.finished:
        raise TaskStopped(task.name)


def attempt(task: StudyTask, threads: int | None = None) -> TaskOutcome:
    """Perform a task and return how it ended; only KeyboardInterrupt and SystemExit propagate."""
    try:
        with names_shown(None):  # the study has said which options have no effect
            perform(task, threads)
    except TaskStopped:
        return TaskOutcome(task.name, stopped=True)
    except CommandError as error:
        return TaskOutcome(task.name, str(error), log_tail(error.log), killed=error.killed)
    except BusyError as error:  # no failure: another executor may be running the task
        return TaskOutcome(task.name, error.what, stopped=True)
    except ThresherError as error:
        return TaskOutcome(task.name, str(error), traceback.format_exc())
    except Exception as error:
        return TaskOutcome(task.name, f"{type(error).__name__}: {error}", traceback.format_exc())
    finally:
        # Later trials start with an empty cache; what they share is not in it.
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return TaskOutcome(task.name)


class _Remarks(logging.Handler):
    """Collects the warnings of a task."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.texts[record.getMessage()] = None


def attempt_with_remarks(task: StudyTask, threads: int | None = None) -> TaskOutcome:
    """Do as `attempt`, and return also what the task warned of; for a process with its own log."""
    logger, remarks = logging.getLogger("thresher"), _Remarks()
    logger.addHandler(remarks)
    try:
        return replace(attempt(task, threads), remarks=list(remarks.texts))
    finally:
        logger.removeHandler(remarks)


def redirect_output(log: Path) -> None:
    """Append output, errors and log records of this process and its children to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    logger = logging.getLogger("thresher")
    if not logger.handlers:
        logger.addHandler(logging.StreamHandler())
        logger.setLevel(logging.INFO)


def log_tail(log: Path | None) -> str:
    """Return the end of a log file; "" if there is none."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-4000:] if log else ""
    except OSError:
        return ""
