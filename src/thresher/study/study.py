"""A study: a definition and its folder. Run it, resume it, read its state.

The folder holds the whole state. A trial is finished when its `result.json` exists; a failure is a
line in `errors/NAME.jsonl`; `running.json` lists the running tasks. A study that is killed at any
moment and run again loses at most the trials that were running, which resume from their
checkpoints.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from thresher.effect import without_effect
from thresher.errors import InvalidValueError, NotFoundError, check_type
from thresher.paths import StudyPaths, as_path, write_text
from thresher.stopping import interruptible
from thresher.study import history, reading
from thresher.study.definition import StudyDefinition
from thresher.study.driver import Driver
from thresher.study.executors import executor_config, executor_settings, make_executor
from thresher.study.expand import expand
from thresher.study.inputs import InputRecord
from thresher.study.preflight import check_inputs, check_measured, option_remarks
from thresher.study.results import Trial, read_trials
from thresher.study.slurm import SlurmConfig, SlurmExecutor, check_folder, forget_outcomes
from thresher.study.slurm_commands import check_commands
from thresher.study.status import Failures, StudyStatus, hold, read_status
from thresher.study.tasks import StudyPlan, Values
from thresher.study.toml import dumps, plain_values

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study:
    """Many training runs over a grid of options and seeds, in one folder.

    Example:
        >>> from thresher import Study
        >>> study = Study.from_dict(
        ...     {
        ...         "seeds": 2,
        ...         "base": {"data": "digits", "epochs": 1},
        ...         "grid": {"batch_size": [32, 64]},
        ...     },
        ...     "runs/batch-size",
        ... )
        >>> len(study.plan().trials)
        4
        >>> study.status().count("waiting")
        4
    """

    definition: StudyDefinition
    """The content of the study file."""
    root: Path
    """Folder that the study runs in."""

    @classmethod
    def load(cls, file: Path | str, out: Path | str) -> "Study":
        """Read a study file (TOML), to run the study in the folder `out`, which need not exist.

        Raises:
            InvalidValueError: A key or value of the file is wrong.
        """
        return cls(reading.load(as_path(file, "file")), as_path(out, "out"))

    @classmethod
    def from_dict(cls, content: Values, out: Path | str) -> "Study":
        """Build a study from nested dictionaries in the shape of the TOML file.

        Options that are None are left out.
        """
        check_type(content, Mapping, "content", "a mapping")
        content = plain_values(content)
        return cls(reading.from_dict(content, "the study", dumps(content)), as_path(out, "out"))

    @classmethod
    def open(cls, root: Path | str) -> "Study":
        """Open the folder of a study that was run before.

        Raises:
            NotFoundError: The folder does not hold a study.
        """
        paths = StudyPaths(as_path(root, "root"))
        if not paths.definition.is_file():
            raise NotFoundError(f"{root} is not a study: it has no study.toml", "check the path")
        return cls(reading.load(paths.definition), paths.root)

    def plan(self) -> StudyPlan:
        """Return every step and trial; writes nothing."""
        return self._plan

    @cached_property
    def _plan(self) -> StudyPlan:
        return expand(self.definition, self.root)

    def trials(self, metric: str | None = None) -> list[Trial]:
        """Return the trials; `metric`, by default that of the study file, is their `value`."""
        metric = metric or self.definition.metric
        return read_trials(self.definition, self.plan(), self.status(), metric)

    def output(self, step: str, **at: Any) -> Path:
        """Return what a step writes; `at` holds the axes of its `each`, such as `seed=0`."""
        steps = [task for task in self.plan().steps.values() if task.step == step]
        matches = [task for task in steps if at.items() <= task.at.items()]
        if not matches:
            raise InvalidValueError(f'no trial of the study in {self.root} needs a step "{step}"')
        if len(matches) > 1:
            fix = f"give the values of {', '.join(matches[0].at)}"
            raise InvalidValueError(f'step "{step}" runs {len(matches)} times', fix)
        return matches[0].out

    def status(self) -> StudyStatus:
        """Return the state of every step and trial."""
        return read_status(self.definition, self.plan(), self.root)

    def _finished(self, steps_only: bool) -> bool:
        """Return whether a run has nothing to do, not even to store a changed study file."""
        stored = StudyPaths(self.root).definition
        if not stored.is_file() or stored.read_bytes() != self.definition.text.encode():
            return False
        status = self.status()
        steps = all(step.state == "finished" for step in status.steps)
        return steps if steps_only else status.complete

    def run(
        self,
        executor: Mapping[str, Any] | str | None = None,
        retry: bool = False,
        steps_only: bool = False,
    ) -> StudyStatus:
        """Run every step and trial that is not finished.

        Args:
            executor: Where to run: a kind ("local", "in-process", "slurm"), with the options of
                the study file if they are for that kind, or the keys of [executor]; default: as the
                study file says.
            retry: Run failed tasks again.
            steps_only: Run the steps that trials need, and no trial: to look at selections first,
                or if only these are wanted.

        Returns:
            The state of the study afterwards. A trial that fails does not raise.

        Raises:
            InvalidValueError: An option is wrong.
            NotFoundError: A data set, selection or other input is missing.
            BusyError: Another process is running the study.
        """
        plan = self.plan()
        if executor is None or isinstance(executor, str):
            executor = executor_settings(self.definition.executor, executor)
        config = executor_config(executor)
        finished = self._finished(steps_only)
        if isinstance(config, SlurmConfig) and not finished:
            check_commands()
            check_folder(self.root)
        check_inputs(plan, programs=not isinstance(config, SlurmConfig))
        InputRecord(self.root, plan).check(plan.tasks.values())
        check_measured(plan, self.definition.metric)
        idle = [f"{sentence}." for sentence in without_effect(self.definition).values() if sentence]
        said = [*idle, *option_remarks(plan)]
        for sentence in said:
            logger.warning(sentence)
        if finished:  # writes nothing: the folder may be somebody else's
            status = self.status()
            count = len(status.steps) if steps_only else status.count("finished")
            unit = "steps" if steps_only else "trials"
            logger.info("%d of %d %s are already finished", count, count, unit)
            return status
        with hold(self.root), interruptible():
            paths = StudyPaths(self.root)
            reading.check_stored(paths.definition)
            history.record(self.root, self.definition, self.status().count("finished"))
            write_text(paths.definition, self.definition.text)
            if retry:
                Failures(self.root).retry(plan.tasks)
                forget_outcomes(self.root, plan.tasks)
            with make_executor(config, self.root) as chosen:
                if isinstance(chosen, SlurmExecutor):
                    chosen.mention_others(plan.tasks)
                try:
                    Driver(self.definition, plan, self.root, chosen, steps_only, said).run()
                finally:
                    paths.running.unlink(missing_ok=True)
        return self.status()
