"""Run the tasks of a plan: keep an executor busy until nothing more can run."""

import logging
import re
import time
from collections.abc import Iterable
from pathlib import Path

from thresher import progress
from thresher.paths import StudyPaths, write_json
from thresher.study.definition import StudyDefinition
from thresher.study.inputs import InputRecord
from thresher.study.status import Failures
from thresher.study.tasks import Executor, StudyPlan, StudyTask, TaskOutcome
from thresher.study.tune import number_of_trials, wanted_trials

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
        said: Iterable[str] = (),
    ) -> None:
        self.study, self.plan, self.root, self.executor = study, plan, root, executor
        self.steps_only = steps_only
        self.failures, self.inputs = Failures(root), InputRecord(root, plan)
        self.excluded = {n for n in plan.tasks if self.failures.stands(n)}
        """Tasks that this run does not start (again): they failed or were stopped."""
        self.submitted: set[str] = set()
        self.shown: dict[str, str] | None = None
        self.said = set(map(_kind, said))
        """The kinds of remarks that were logged already."""

    def run(self) -> None:
        """Run until every wanted task is finished or cannot be."""
        counted, unit = self.plan.trials, "trials"
        if self.steps_only:
            counted, unit = self.plan.steps, "steps"
        wanted = wanted_trials(self.study, self.plan)
        done, total = sum(task.finished for task in counted.values()), self._total(wanted)
        if done:
            logger.info("%d of %d %s are already finished", done, total, unit)
        with progress.bar("study", total, unit) as bar:
            bar.resume(done)
            while True:
                ready = self._ready(wanted)
                self.inputs.add(ready)
                self.executor.submit(ready)
                if not self.submitted:
                    return
                running = self.executor.running()
                if running != self.shown:
                    self.shown = running
                    state = {"time": time.time(), "running": running}
                    write_json(StudyPaths(self.root).running, state)
                for outcome in self.executor.wait():
                    self.submitted.discard(outcome.name)
                    self._record(outcome)
                    if not self.plan.tasks[outcome.name].finished:
                        continue
                    if outcome.name in counted:
                        bar.note(outcome.name)
                        bar.advance()
                    else:
                        bar.prepare(outcome.name)
                wanted = wanted_trials(self.study, self.plan)
                bar.expect(self._total(wanted))

    def _total(self, wanted: list[StudyTask]) -> int:
        """Return how many trials, or steps, are finished in the end, as far as is known now."""
        if self.steps_only:
            return len(self.plan.steps)
        return number_of_trials(self.study, self.plan, wanted)

    def _ready(self, wanted: list[StudyTask]) -> list[StudyTask]:
        """Return the tasks that can be submitted now: steps first, then long trials first."""
        needed = {task.name: task for task in wanted if not task.finished}
        queue = list(needed.values())
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
        for remark in outcome.remarks:
            if _kind(remark) not in self.said:
                self.said.add(_kind(remark))
                logger.warning("%s: %s", outcome.name, remark)
        if self.plan.tasks[outcome.name].finished:
            return
        self.excluded.add(outcome.name)
        if outcome.stopped:
            why = outcome.error or "it was stopped"
            logger.warning("%s: %s; run the study again to resume it", outcome.name, why)
            return
        error = outcome.error or "it ended without a result"
        self.failures.add(outcome.name, error, outcome.detail, outcome.killed)
        logger.error("%s failed: %s", outcome.name, error)
        if not self.failures.stands(outcome.name):
            logger.error("%s was killed; run the study again to resume it", outcome.name)


def _kind(remark: str) -> str:
    """Return a remark without the numbers and names that differ between tasks."""
    return re.sub(r"\S*\d\S*", "#", remark.rstrip("."))
