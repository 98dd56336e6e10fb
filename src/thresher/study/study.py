"""Run a study: what is finished is skipped, what was stopped goes on, what failed is kept.

The folder is the whole state. A trial is finished when its `result.json` is there; a failure is a
line in `errors/NAME.jsonl`; `running.json` says what is under way, for `study status`. Whatever
moment the study is killed at, running it again loses at most what was in flight, and that goes on
from its checkpoints.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from thresher import progress
from thresher.errors import ThresherError
from thresher.paths import StudyPaths, write_json, write_text
from thresher.study import definition as definitions
from thresher.study.definition import StudyDefinition
from thresher.study.executor import Executor
from thresher.study.executors import check_executor, executor_config, make_executor
from thresher.study.expand import expand
from thresher.study.folder import Failures, StudyStatus, read_status, running_file
from thresher.study.lock import hold
from thresher.study.tasks import StudyPlan, StudyTask, TaskOutcome
from thresher.study.toml import dumps
from thresher.study.tune import wanted_trials


@dataclass(frozen=True)
class Study:
    """A definition and the folder that it is, or will be, run in."""

    definition: StudyDefinition
    root: Path

    @classmethod
    def load(cls, file: Path | str, out: Path | str) -> "Study":
        """A study from its TOML file, to be run in the folder `out`."""
        return cls(definitions.load(file), Path(out))

    @classmethod
    def make(cls, content: dict[str, Any], out: Path | str) -> "Study":
        """A study from a nested dictionary in the shape of the TOML file: what recipes do."""
        return cls(definitions.from_dict(content, "the study", dumps(content)), Path(out))

    @classmethod
    def open(cls, root: Path | str) -> "Study":
        """A study that was begun, from its folder."""
        paths = StudyPaths(Path(root))
        if not paths.definition.is_file():
            raise ThresherError(f"there is no study in {root}", "run one: `thresher study run`")
        return cls(definitions.load(paths.definition), paths.root)

    def plan(self) -> StudyPlan:
        return expand(self.definition, self.root)

    def output(self, step: str, **at: Any) -> Path:
        """Where a step's result is: the run, the features or the selection of `[steps.NAME]`.

        A step that is done for each seed, or each value of an axis, needs those (`seed=0`).
        """
        found = [
            task
            for task in self.plan().steps.values()
            if task.step == step and all(task.at.get(key) == value for key, value in at.items())
        ]
        if not found:
            raise ThresherError(f'no trial of the study in {self.root} needs a step "{step}"')
        if len(found) > 1:
            raise ThresherError(f'the step "{step}" was done {len(found)} times', "say for which")
        return found[0].out

    def status(self) -> StudyStatus:
        return read_status(self.definition, self.plan(), self.root)

    def run(self, executor: dict[str, Any] | None = None, retry: bool = False) -> StudyStatus:
        """Do what is left of the study and say where it stands.

        `executor` overrides [executor] of the file; `retry` tries failed tasks again. A second
        run into the same folder is refused while the first goes on.
        """
        plan = self.plan()
        config = executor_config(self.definition.executor if executor is None else executor)
        check_executor(config)
        with hold(self.root), _terminate_as_interrupt():
            write_text(StudyPaths(self.root).definition, self.definition.text)
            if retry:
                Failures(self.root).forgive(plan.tasks)
            with make_executor(config, self.root) as chosen:
                try:
                    _Driver(self.definition, plan, self.root, chosen).drive()
                finally:
                    running_file(self.root).unlink(missing_ok=True)
        return self.status()


class _Driver:
    """Keeps an executor fed with what may run, until nothing more can."""

    def __init__(
        self, study: StudyDefinition, plan: StudyPlan, root: Path, executor: Executor
    ) -> None:
        self.study, self.plan, self.root, self.executor = study, plan, root, executor
        self.failures = Failures(root)
        self.over: set[str] = {n for n in plan.tasks if self.failures.last(n) is not None}
        """Tasks not to be started any more in this run: failed before, failed now, or stopped."""
        self.flying: set[str] = set()
        self.shown: dict[str, str] | None = None

    def drive(self) -> None:
        trials = self.plan.trials
        total = len(trials)
        done = sum(trial.finished for trial in trials.values())
        if done:
            progress.say(f"{done} of {total} trials are finished already")
        with progress.bar("study", total, "trials") as bar:
            bar.advance(done)
            while True:
                self.executor.submit(self.ready())
                if not self.flying:
                    return
                self.show()
                for ended in self.executor.wait():
                    self.flying.discard(ended.name)
                    self.note(ended)
                    if ended.name in trials and trials[ended.name].finished:
                        bar.advance()
                        bar.note(ended.name)

    def ready(self) -> list[StudyTask]:
        """What can be started now and was not, the longest first."""
        wanted = {t.name: t for t in wanted_trials(self.study, self.plan) if not t.finished}
        needed = dict(wanted)
        queue = list(wanted.values())
        while queue:  # steps of trials, and steps of those steps
            for name in queue.pop().needs:
                step = self.plan.steps[name]
                if name not in needed and not step.finished:
                    needed[name] = step
                    queue.append(step)
        now = [
            task
            for task in needed.values()
            if task.name not in self.over | self.flying
            and all(self.plan.steps[name].finished for name in task.needs)
        ]
        self.flying |= {task.name for task in now}
        return sorted(now, key=lambda task: (task.is_trial, -task.cost))

    def note(self, ended: TaskOutcome) -> None:
        if self.plan.tasks[ended.name].finished:
            return
        self.over.add(ended.name)
        if ended.stopped:
            progress.say(f"{ended.name} was stopped; run the study again to go on")
            return
        error = ended.error or "it ended without a result"
        self.failures.add(ended.name, error, ended.detail)
        progress.say(f"{ended.name} failed: {error}")

    def show(self) -> None:
        running = self.executor.running()
        if running != self.shown:
            self.shown = running
            write_json(running_file(self.root), {"time": time.time(), "running": running})


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a study as Ctrl-C does: its workers save first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
