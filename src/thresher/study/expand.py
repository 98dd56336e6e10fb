"""Expand a study definition into its steps and trials, with stable names.

A name holds the values of the axes and six hex digits of everything that changes the result. A
study that is extended (more seeds, another batch size) therefore finds its finished trials again,
and a study whose base options change never reuses an old trial. Long names are cut.
"""

import hashlib
import math
import re
import sys
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError, nearest
from thresher.paths import StudyPaths
from thresher.study.command import COMMAND, fill
from thresher.study.definition import ARM, FULL, StepDefinition, StudyDefinition
from thresher.study.selecting import HOLD_OUT, check_embed, check_select
from thresher.study.settings import check_training, digest, identity
from thresher.study.tasks import StudyPlan, StudyTask, TaskKind, Values
from thresher.training.presets import preset

REFERENCES = {
    **dict.fromkeys(("run", "dynamics"), ("train",)),
    "features": ("embed",),
    "also": ("train", "embed"),
    **dict.fromkeys(("like", "selection", "selections"), ("select",)),
}
"""Settings that may name steps, and of which kinds."""
CHECKS = {"train": check_training, "embed": check_embed, "select": check_select}
MOST_TRIALS = 100_000
LONGEST_NAME = 230
"""Bytes of a name. A file name has at most 255, and files are called by it and an ending."""


def expand(study: StudyDefinition, root: Path | str) -> StudyPlan:
    """Return every step and trial of `study` in the folder `root`; writes nothing."""
    return _Expansion(study, StudyPaths(Path(root))).plan()


class _Expansion:
    def __init__(self, study: StudyDefinition, paths: StudyPaths) -> None:
        self.study, self.paths = study, paths
        self.steps: dict[str, StudyTask] = {}
        self.instances: dict[tuple[str, str], StudyTask] = {}
        """The same steps, by the name of the definition and the values of its axes."""
        self.open: list[str] = []
        """Names of the steps that are being expanded, to detect cycles."""

    def plan(self) -> StudyPlan:
        count = math.prod(len(self.study.values(axis)) for axis in self.study.axes)
        count *= len(self.study.seeds)
        if count > MOST_TRIALS:
            message = f"the study has {count:,} trials, more than {MOST_TRIALS:,}"
            raise InvalidValueError(message, "use fewer seeds or values")
        trials: dict[str, StudyTask] = {}
        for cell in self.study.cells:
            for seed in self.study.seeds:
                trial = self.trial(cell, seed)
                same = trials.setdefault(trial.name, trial)
                if same is not trial:
                    raise InvalidValueError(
                        f"the trials of {same.cell} and {cell} have the same options and the same "
                        f"name, {trial.name}",
                        "rename one of them: only letters without accents and digits count, and of "
                        "these the last 32",
                    )
        return StudyPlan(self.steps, trials)

    def trial(self, cell: Values, seed: int) -> StudyTask:
        settings: Values = {**self.study.base, **self.varied(cell)}
        if not self.study.runs_command:
            settings = {**preset(settings.get("model")), **settings}
        settings["seed"] = seed
        decisive = {key: value for key, value in settings.items() if key != "selection"}
        needs: tuple[str, ...] = ()
        value = settings.pop("selection", None) or FULL
        if value in self.study.steps:
            step = self.named_step(value, "selection", {**cell, "seed": seed})
            needs = (step.name,)
            settings["selection"] = str(step.out)
            decisive["selection"] = step.identity
        elif isinstance(value, str) and value.endswith(".parquet"):
            settings["selection"] = decisive["selection"] = value
        elif value != FULL:
            raise InvalidValueError(
                f'selection "{value}" is neither a step nor a .parquet file',
                nearest(str(value), [FULL, *self.study.steps]),
            )
        if f"{{{ARM}}}" in str(settings.get(COMMAND)) and _slug(cell.get(ARM)) != cell.get(ARM):
            decisive[ARM] = cell.get(ARM)  # the words of the name may be those of another arm
        known = (digest if self.study.runs_command else identity)(decisive)
        name = bounded_name(_words({**cell, "seed": seed}), f",id={known}")
        paths = self.paths.trial(name)
        kind: TaskKind = "train"
        if self.study.runs_command:
            kind, settings = "command", self.command_settings(settings, cell, paths.output)
        else:
            check_training(settings, name)
        return StudyTask(name, kind, settings, paths.root, known, needs, dict(cell), seed)

    def command_settings(self, values: Values, cell: Values, out: Path) -> Values:
        """Return the arguments of a trial's command, the metrics that it must report, its data."""
        if COMMAND not in values:
            raise InvalidValueError(f"command is not set for arm {cell[ARM]}", "set it in [base]")
        own = {"out": str(out.absolute()), "python": sys.executable, "selection": FULL}
        if "selection" in values:
            own["selection"] = str(Path(values["selection"]).absolute())
        arm = {ARM: cell[ARM]} if ARM in cell else {}
        return {
            "arguments": fill(values[COMMAND], {**values, **own, **arm}),
            "metrics": [self.study.metric, *(["validation_accuracy"] if self.study.tune else [])],
            **{key: values[key] for key in ("data", *HOLD_OUT, "selection") if key in values},
        }

    def named_step(self, name: str, key: str, axes: Values) -> StudyTask:
        """Return the step that the setting `key` names."""
        definition = self.study.steps[name]
        if definition.do not in REFERENCES[key]:
            raise InvalidValueError(
                f"{key} must name a step of kind {' or '.join(REFERENCES[key])}, got "
                f'"{name}" of kind {definition.do}'
            )
        return self.step(definition, axes)

    def step(self, definition: StepDefinition, axes: Values) -> StudyTask:
        """Return the instance of a step for these values of the axes."""
        if definition.name in self.open:
            cycle = " → ".join([*self.open, definition.name])
            raise InvalidValueError(f"the steps {cycle} need each other")
        for axis in definition.each:
            if axis not in axes:
                user = self.open[-1] if self.open else "a trial"
                raise InvalidValueError(
                    f"step {definition.name} runs for each {axis}, but {user}, which needs it, "
                    "does not",
                    f'add each = ["{axis}"] to [steps.{user}]' if self.open else "",
                )
        own = {axis: axes[axis] for axis in definition.each}
        if definition.draws is not None:
            seeds = self.study.seeds
            own["seed"] = seeds[seeds.index(own["seed"]) % definition.draws]
        instance = (definition.name, repr(own))
        if instance in self.instances:
            return self.instances[instance]
        self.open.append(definition.name)
        settings = self.step_settings(definition, own)
        needs: list[str] = []
        decisive = dict(settings)
        for key in (key for key in REFERENCES if key in settings):
            value = settings.pop(key)
            values = value if isinstance(value, list) else [value]
            outputs = [self.reference(definition, key, one, own) for one in values]
            needs += [step.name for step in outputs if isinstance(step, StudyTask)]
            paths = [str(s.out) if isinstance(s, StudyTask) else s for s in outputs]
            names = [s.identity if isinstance(s, StudyTask) else s for s in outputs]
            decisive[key] = names if isinstance(value, list) else names[0]
            if isinstance(value, list):
                settings[key] = paths
            elif paths[0]:
                settings[key] = paths[0]
        if definition.is_control:
            # Up to version 0.1 controls matched the share and not the classes: another result.
            decisive["matched"] = "class"
        where = f"[steps.{definition.name}]"
        if "data" not in settings:
            several = "data" in self.study.grid
            because = ", because [grid] has several data sets" if several else ""
            fix = 'add data = "…" or each = ["data"]' if several else "set data under [base]"
            raise InvalidValueError(f"data is required in {where}{because}", fix)
        CHECKS[definition.do](settings, where)
        known = identity({"do": definition.do, **decisive})
        varied = f",{_words(own)}" if own else ""
        name = bounded_name(f"{definition.name}{varied}", f",id={known}")
        out = self.paths.steps / name
        if definition.do == "select":
            out = out / "selection.parquet"
        step = self.open.pop()
        kind = definition.do
        task = StudyTask(name, kind, settings, out, known, tuple(needs), step=step, at=own)
        self.instances[instance] = self.steps.setdefault(name, task)
        return self.instances[instance]

    def step_settings(self, definition: StepDefinition, own: Values) -> Values:
        """Merge [base] and the step: a train step uses all of [base], the others its data.

        A select step also takes the validation split, whose samples it must not choose among. If
        trials run a command, the other values of [base] are its placeholders.
        """
        base, varied = self.study.base, self.varied(own)
        of_data = ("data", *HOLD_OUT)
        if self.study.runs_command:
            base = {key: base[key] for key in of_data if key in base}
            varied = {key: varied[key] for key in ("seed", *of_data) if key in varied}
        if definition.do == "train":
            start = {key: value for key, value in base.items() if key != "selection"}
            start |= {"seed": 0, **varied}
            model = definition.settings.get("model", start.get("model"))
            return {**preset(model), **start, **definition.settings}
        shared = {**base, **varied}
        taken = (*of_data, "seed") if definition.do == "select" else ("data", "seed")
        return {key: shared[key] for key in taken if key in shared} | definition.settings

    def varied(self, axes: Values) -> Values:
        """Return the options that these values of the axes set."""
        options: Values = {}
        for axis, value in axes.items():
            options.update(self.study.arms[value] if axis == ARM else {axis: value})
        return options

    def reference(
        self, definition: StepDefinition, key: str, value: Any, own: Values
    ) -> StudyTask | str:
        """Return the step that a setting names, or the path that it is."""
        if value == FULL and key == "selection":
            return ""
        if isinstance(value, str) and value in self.study.steps:
            return self.named_step(value, key, own)
        if isinstance(value, str) and ("/" in value or "." in value or not value):
            return value
        raise InvalidValueError(
            f'{key} of [steps.{definition.name}] is "{value}", which is neither a step nor a path',
            nearest(str(value), self.study.steps),
        )


def bounded_name(words: str, tail: str = "") -> str:
    """Return `words` and `tail`, with a hash for the end of `words` if that is too long."""
    name = words + tail
    if len(name.encode()) <= LONGEST_NAME:
        return name
    tail = f",hash={hashlib.sha256(name.encode()).hexdigest()[:8]}{tail}"
    return words.encode()[: LONGEST_NAME - len(tail)].decode(errors="ignore") + tail


def _words(values: Values) -> str:
    return ",".join(f"{key}={_slug(value) or 'none'}" for key, value in values.items())


def _slug(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", str(value)).strip("-.")[-32:]
