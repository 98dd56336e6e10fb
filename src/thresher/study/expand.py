"""From a definition to what has to be done: steps and trials, with names that stay.

A name holds the values that vary and six hex digits of everything that decides the result. A
study that is extended (more seeds, another batch size) therefore finds its finished trials again,
and one whose base is changed never takes an old trial for a new one.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError, nearest
from thresher.paths import StudyPaths
from thresher.study.definition import ARM, FULL, StepDefinition, StudyDefinition
from thresher.study.selecting import check_embed, check_select
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.training.config import TrainConfig, check

REFERENCES = ("run", "features", "like", "selection", "selections", "dynamics", "probabilities")
"""Settings of a step that may name other steps."""
NOT_IDENTITY = frozenset(
    {"out", "resume", "device", "threads", "checkpoint_every", "tensorboard", "trace"}
    | {"max_restarts", "graph", "compile"}
)
"""Settings that say how a trial is run, not what comes out."""


def expand(study: StudyDefinition, root: Path | str) -> StudyPlan:
    """All that `study` asks for in the folder `root`; nothing is written."""
    return _Expansion(study, StudyPaths(Path(root))).plan()


class _Expansion:
    def __init__(self, study: StudyDefinition, paths: StudyPaths) -> None:
        self.study, self.paths = study, paths
        self.steps: dict[str, StudyTask] = {}
        self.open: list[str] = []

    def plan(self) -> StudyPlan:
        trials = {}
        for cell in cells(self.study):
            for seed in self.study.seeds:
                trial = self.trial(cell, seed)
                trials[trial.name] = trial
        return StudyPlan(self.steps, trials)

    def trial(self, cell: dict[str, Any], seed: int) -> StudyTask:
        settings: dict[str, Any] = dict(self.study.base)
        for axis, value in cell.items():
            settings.update(self.study.arms[value] if axis == ARM else {axis: value})
        settings["seed"] = seed
        needs: list[str] = []
        identity = dict(settings)
        settings["selection"] = self.selection(
            str(settings.get("selection", "")), {**cell, "seed": seed}, needs, identity
        )
        digest = _digest(identity)
        name = f"{_words({**cell, 'seed': seed})},id={digest}"
        out = self.paths.trial(name).root
        _checked({**settings, "out": str(out)}, name)
        return StudyTask(name, "train", settings, out, digest, tuple(needs), dict(cell), seed)

    def selection(
        self, value: str, here: dict[str, Any], needs: list[str], identity: dict[str, Any]
    ) -> str:
        """The file that a trial trains on: "" for all, a step's output, or a path."""
        identity.pop("selection", None)
        if value in ("", FULL):
            return ""
        if value in self.study.steps:
            step = self.step(self.study.steps[value], here)
            needs.append(step.name)
            identity["selection"] = step.identity
            return str(step.out)
        if value.endswith(".parquet"):
            identity["selection"] = value
            return value
        raise ThresherError(
            f'the selection "{value}" is neither a step nor a .parquet file',
            nearest(value, [FULL, *self.study.steps]),
        )

    def step(self, definition: StepDefinition, here: dict[str, Any]) -> StudyTask:
        """The instance of a step for the values `here` of the axes that it is done for."""
        if definition.name in self.open:
            raise ThresherError(
                f"the steps {' → '.join([*self.open, definition.name])} need each other"
            )
        self.open.append(definition.name)
        own = {axis: here[axis] for axis in definition.each if axis in here}
        lacking = [axis for axis in definition.each if axis not in here]
        if lacking:
            raise ThresherError(
                f"step {definition.name} is done for each {lacking[0]}, but what needs it is not",
                f'add each = ["{lacking[0]}"] there',
            )
        settings = self.step_settings(definition, own)
        needs: list[str] = []
        identity = dict(settings)
        for key in REFERENCES:
            if key in settings:
                settings[key], identity[key] = self.reference(definition, key, settings, own, needs)
        place = f"[steps.{definition.name}]"
        if definition.do == "train":
            _checked({**settings, "out": "-"}, place)
        elif definition.do == "embed":
            check_embed(settings, place)
        else:
            check_select(settings, place)
        digest = _digest({"do": definition.do, **identity})
        varied = f",{_words(own)}" if own else ""
        name = f"{definition.name}{varied},id={digest}"
        out = self.paths.steps / name
        if definition.do == "select":
            out = out / "selection.parquet"
        task = StudyTask(
            name, definition.do, settings, out, digest, tuple(needs), step=definition.name, at=own
        )
        self.open.pop()
        return self.steps.setdefault(name, task)

    def step_settings(self, definition: StepDefinition, own: dict[str, Any]) -> dict[str, Any]:
        """A train step starts from [base]; the others only share its data."""
        base = self.study.base
        start: dict[str, Any] = {"data": base["data"]} if "data" in base else {}
        if definition.do == "train":
            start = {k: v for k, v in base.items() if k != "selection"}
            start["seed"] = 0
            for axis, value in own.items():
                start.update(self.study.arms[value] if axis == ARM else {axis: value})
        for key in ("data", "seed"):
            if key in own:
                start[key] = own[key]
        return {**start, **definition.settings}

    def reference(
        self,
        definition: StepDefinition,
        key: str,
        settings: dict[str, Any],
        own: dict[str, Any],
        needs: list[str],
    ) -> tuple[Any, Any]:
        """(what the step is given, what names it): outputs of other steps, or paths as written."""
        value = settings[key]
        several = isinstance(value, list)
        given, named = [], []
        for one in value if several else [value]:
            if one == FULL and key == "selection":
                given.append("")
                named.append("")
            elif one in self.study.steps:
                step = self.step(self.study.steps[one], own)
                needs.append(step.name)
                given.append(str(step.out))
                named.append(step.identity)
            elif isinstance(one, str) and ("/" in one or "." in one or not one):
                given.append(one)
                named.append(one)
            else:
                raise ThresherError(
                    f'{key} of the step {definition.name} is "{one}", neither a step nor a path',
                    nearest(str(one), self.study.steps),
                )
        return (given, named) if several else (given[0], named[0])


def cells(study: StudyDefinition) -> Iterator[dict[str, Any]]:
    """Every combination of the axes' values, the last axis fastest."""
    axes = study.axes
    for values in itertools.product(*(study.values(axis) for axis in axes)):
        yield dict(zip(axes, values, strict=True))


def _checked(settings: dict[str, Any], name: str) -> None:
    """Refuse a trial that could not be trained before any is started."""
    try:
        check(TrainConfig.from_dict(settings))
    except ThresherError as error:
        raise ThresherError(f"{name}: {error.what}", error.fix) from None


def _digest(identity: dict[str, Any]) -> str:
    kept = {key: value for key, value in identity.items() if key not in NOT_IDENTITY}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _words(values: dict[str, Any]) -> str:
    return ",".join(f"{key}={_slug(value)}" for key, value in values.items())


def _slug(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", str(value)).strip("-.")[-32:] or "none"
