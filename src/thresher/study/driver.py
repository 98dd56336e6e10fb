"""Run the tasks of a plan: keep an executor busy until nothing more can run."""

import logging
import time
from pathlib import Path

from thresher import progress
from thresher.paths import write_json
from thresher.study.definition import StudyDefinition
from thresher.study.inputs import InputRecord
from thresher.study.status import Failures, running_file
from thresher.study.tasks import Executor, StudyPlan, StudyTask, TaskOutcome
from thresher.study.tune import wanted_trials

logger = logging.getLogger(__name__)


class Driver:
    """Submit the tasks that can run and record how each ends."""

    def __init__(
        self,
        study: StudyDefinition,
        plan: StudyPlan,
        root: Path,
        executor: Executor,
        steps_only: bool = False,
    ) -> None:
        self.study, self.plan, self.root, self.executor = study, plan, root, executor
        self.steps_only = steps_only
        self.failures, self.inputs = Failures(root), InputRecord(root, plan)
        self.excluded = {n for n in plan.tasks if self.failures.stands(n)}
        """Tasks that this run does not start (again): they failed or were stopped."""
        self.submitted: set[str] = set()
        self.shown: dict[str, str] | None = None

    def run(self) -> None:
        """Run until every wanted task is finished or cannot be."""
        counted, unit = self.plan.trials, "trials"
        if self.steps_only:
            counted, unit = self.plan.steps, "steps"
        done = sum(task.finished for task in counted.values())
        if done:
            logger.info("%d of %d %s are already finished", done, len(counted), unit)
        with progress.bar("study", len(counted), unit) as bar:
            bar.advance(done)
            while True:
                ready = self._ready()
                self.inputs.add(ready)
                self.executor.submit(ready)
                if not self.submitted:
                    return
                running = self.executor.running()
                if running != self.shown:
                    self.shown = running
                    state = {"time": time.time(), "running": running}
                    write_json(running_file(self.root), state)
                for outcome in self.executor.wait():
                    self.submitted.discard(outcome.name)
                    self._record(outcome)
                    if outcome.name in counted and counted[outcome.name].finished:
                        bar.advance()
                        bar.note(outcome.name)

    def _ready(self) -> list[StudyTask]:
        """Return the tasks that can be submitted now: steps first, then long trials first."""
        wanted = {t.name: t for t in wanted_trials(self.study, self.plan) if not t.finished}
        needed = dict(wanted)
        queue = list(wanted.values())
        while queue:  # steps of trials, and steps of those steps
            for name in queue.pop().needs:
                step = self.plan.steps[name]
                if name not in needed and not step.finished:
                    needed[name] = step
                    queue.append(step)
        ready = [
            task
            for task in needed.values()
            if task.name not in self.excluded | self.submitted
            and all(self.plan.steps[name].finished for name in task.needs)
            and not (self.steps_only and task.is_trial)
        ]
        self.submitted |= {task.name for task in ready}
        return sorted(ready, key=lambda task: (task.is_trial, -task.cost))

    def _record(self, outcome: TaskOutcome) -> None:
        if self.plan.tasks[outcome.name].finished:
            return
        self.excluded.add(outcome.name)
        if outcome.stopped:
            logger.warning("%s was stopped; run the study again to resume it", outcome.name)
            return
        error = outcome.error or "it ended without a result"
        self.failures.add(outcome.name, error, outcome.detail, outcome.killed)
        logger.error("%s failed: %s", outcome.name, error)
        if not self.failures.stands(outcome.name):
            logger.error("%s was killed; run the study again to resume it", outcome.name)
