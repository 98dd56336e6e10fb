"""A study as a person writes it: a TOML file, read strictly.

    title = "Does filtering help at large batches?"
    seeds = 4                       # or a list
    compare = "selection"           # the axis whose values are compared, seed by seed
    tune = ["lr"]                   # chosen per cell on the validation split

    [base]                          # any training setting
    data = "cifar10"

    [grid]                          # any training setting, as a list
    batch_size = [256, 1024]
    selection = ["full", "random", "network"]

    [steps.extractor]               # done once, before the trials that need it
    do = "train"

    [executor]
    kind = "local"

A key that is not known is refused with the nearest one that is.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from thresher.errors import ThresherError, nearest
from thresher.study.tasks import TaskKind
from thresher.training.config import TrainConfig

FULL = "full"
"""The value of the axis `selection` that trains on everything."""
ARM = "arm"
"""The axis whose values are the tables under [arms]: named bundles of settings."""
STEP_KINDS = ("train", "embed", "select")
OWNED = ("out", "resume", "seed")
"""Training settings that the study sets itself."""
METRICS = ("accuracy", "loss", "time_to_target", "seconds", "train_loss", "validation_accuracy")


@dataclass(frozen=True)
class StepDefinition:
    """Something made once before the trials: `do` is train, embed or select."""

    name: str
    do: TaskKind
    settings: dict[str, Any]
    each: tuple[str, ...] = ()
    """Axes (and `seed`) for each value of which the step is done again."""


@dataclass(frozen=True)
class StudyDefinition:
    """The checked content of a study's TOML file."""

    base: dict[str, Any]
    grid: dict[str, list[Any]]
    seeds: tuple[int, ...]
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: dict[str, StepDefinition] = field(default_factory=dict)
    tune: tuple[str, ...] = ()
    tune_seeds: int = 0
    """Seeds that the tuning looks at; 0: all of them."""
    title: str = ""
    compare: str = ""
    """The axis that is compared; "": selection, arm, or the first axis of the grid."""
    baseline: Any = None
    """The value that the others are compared with; None: the first."""
    pairs: tuple[tuple[Any, Any], ...] = ()
    """Pairs (arm, baseline) to compare instead of all with the baseline."""
    metric: str = "accuracy"
    margin: float | None = None
    """What counts as no difference, in the metric's unit; None: 0.3 points, or 3 % of a time."""
    executor: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    """The file as it was read."""

    @property
    def axes(self) -> list[str]:
        """Every axis that varies, in the order of the file, without the seed."""
        return [*self.grid, *([ARM] if self.arms else [])]

    def values(self, axis: str) -> list[Any]:
        return list(self.arms) if axis == ARM else self.grid[axis]

    @property
    def compared(self) -> str:
        """The axis that is compared; "" where nothing varies but what is tuned."""
        if self.compare:
            return self.compare
        free = [a for a in self.axes if a not in self.tune and len(self.values(a)) > 1]
        for favourite in ("selection", ARM):
            if favourite in free:
                return favourite
        return free[0] if free else ""

    @property
    def compared_pairs(self) -> list[tuple[Any, Any]]:
        """Which values are compared, as (arm, baseline).

        All pairs of up to three values (full / random / network), else each with the baseline.
        """
        if self.pairs:
            return list(self.pairs)
        if not self.compared:
            return []
        values = self.values(self.compared)
        baseline = values[0] if self.baseline is None else self.baseline
        rest = [value for value in values if value != baseline]
        pairs = [(value, baseline) for value in rest]
        if len(values) == 3:
            pairs.append((rest[1], rest[0]))
        return pairs


def load(path: Path | str) -> StudyDefinition:
    """Read and check a study file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ThresherError(f"there is no study file at {path}", "check the path") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise ThresherError(f"{path} is not a study file", "give a TOML file") from None
    return parse(text, str(path))


def parse(text: str, where: str = "the study") -> StudyDefinition:
    """Check a study's text; `where` names it in refusals."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThresherError(f"{where} does not parse as TOML: {error}", "mend that line") from None
    return from_dict(content, where, text)


def from_dict(content: dict[str, Any], where: str = "the study", text: str = "") -> StudyDefinition:
    """Check a study given as a nested dictionary: what recipes build."""
    known = {f.name for f in dataclasses.fields(StudyDefinition)} - {"text"}
    _known_keys(content, known, where)
    base = _table(content, "base", where)
    grid = _table(content, "grid", where)
    arms = _table(content, "arms", where)
    steps = {
        name: _step(name, table, where) for name, table in _table(content, "steps", where).items()
    }
    training = training_settings()
    _known_keys(base, training, f"[base] of {where}")
    _known_keys(grid, training, f"[grid] of {where}")
    for axis, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ThresherError(f"[grid] {axis} of {where} is not a list", f"write {axis} = [ … ]")
        if any(values.count(value) > 1 for value in values):
            raise ThresherError(f"[grid] {axis} of {where} names a value twice", "name it once")
    for name, arm in arms.items():
        _known_keys(_checked_table(arm, f"[arms.{name}] of {where}"), training, f"[arms.{name}]")
    definition = StudyDefinition(
        base=base,
        grid=grid,
        seeds=_seeds(content.get("seeds", 3), where),
        arms=arms,
        steps=steps,
        tune=tuple(_list(content, "tune", where)),
        tune_seeds=content.get("tune_seeds", 0),
        title=content.get("title", ""),
        compare=content.get("compare", ""),
        baseline=content.get("baseline"),
        pairs=tuple((a, b) for a, b in _pairs(content, where)),
        metric=content.get("metric", "accuracy"),
        margin=content.get("margin"),
        executor=_table(content, "executor", where),
        text=text,
    )
    _check(definition, where)
    return definition


def training_settings() -> set[str]:
    """Names that [base], [grid] and [arms] may hold."""
    return {f.name for f in dataclasses.fields(TrainConfig)} - set(OWNED)


def _check(study: StudyDefinition, where: str) -> None:
    if "data" not in study.base and "data" not in study.grid:
        raise ThresherError(f"{where} names no data", "set data under [base]")
    for axis in study.tune:
        if axis not in study.axes:
            raise ThresherError(
                f'tune of {where} names "{axis}", which [grid] does not hold',
                nearest(axis, study.axes),
            )
    varies = [{**study.base, **arm} for arm in study.arms.values()] or [study.base]
    if study.tune and not all("validation" in s or "validation" in study.grid for s in varies):
        raise ThresherError(
            f"{where} tunes without a validation split, and the test set must not choose",
            "set validation under [base] (a count, or a share below 1)",
        )
    if study.compare and study.compare not in study.axes:
        raise ThresherError(
            f'compare of {where} names "{study.compare}", which [grid] does not hold',
            nearest(study.compare, study.axes),
        )
    if study.compare in study.tune and study.compare:
        raise ThresherError(f'{where} both tunes and compares "{study.compare}"', "choose one")
    if study.metric not in METRICS:
        raise ThresherError(
            f'metric of {where} is "{study.metric}"', nearest(str(study.metric), METRICS)
        )
    for value in {a for pair in study.pairs for a in pair} | (
        {study.baseline} if study.baseline is not None else set()
    ):
        if study.compared and value not in study.values(study.compared):
            raise ThresherError(
                f'{where} compares "{value}", which is no value of {study.compared}',
                nearest(str(value), [str(v) for v in study.values(study.compared)]),
            )
    for axis in set(study.grid) & {key for arm in study.arms.values() for key in arm}:
        raise ThresherError(f'both [grid] and [arms] of {where} set "{axis}"', "set it in one")
    for axis, values in study.grid.items():
        for value in values:
            check_type(axis, value, f"[grid] of {where}")
    for table, name in [(study.base, "[base]"), *((arm, "[arms]") for arm in study.arms.values())]:
        for key, value in table.items():
            check_type(key, value, f"{name} of {where}")
    for step in study.steps.values():
        for axis in step.each:
            if axis != "seed" and axis not in study.axes:
                raise ThresherError(
                    f'[steps.{step.name}] of {where} is done for each "{axis}"',
                    nearest(axis, [*study.axes, "seed"]),
                )


def check_type(name: str, value: Any, where: str) -> None:
    """Refuse a value of another type than the training setting `name` has."""
    hint = typing.get_type_hints(TrainConfig)[name]
    if not _fits(value, hint):
        raise ThresherError(f"{name} in {where} is {value!r}", f"it must be {_spoken(hint)}")


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _spoken(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (types.UnionType, Union):
        return " or ".join(_spoken(part) for part in get_args(hint) if part is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(hint))
    if origin is tuple:
        return "a list of numbers"
    return {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[hint]


def _step(name: str, table: Any, where: str) -> StepDefinition:
    place = f"[steps.{name}] of {where}"
    settings = dict(_checked_table(table, place))
    do = settings.pop("do", None)
    if do not in STEP_KINDS:
        raise ThresherError(
            f"{place} says do = {do!r}", nearest(str(do), STEP_KINDS) if do else 'write do = "…"'
        )
    each = settings.pop("each", [])
    if not isinstance(each, list):
        raise ThresherError(f"{place} has an `each` that is not a list", 'write each = ["seed"]')
    if name == FULL:
        raise ThresherError(f'{place} cannot be called "{FULL}"', "that means: no selection")
    if do == "train":
        _known_keys(settings, training_settings() | {"seed"}, place)
    return StepDefinition(name, do, settings, tuple(each))


def _seeds(seeds: Any, where: str) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return tuple(range(seeds))
    numbers = isinstance(seeds, list) and all(
        isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds
    )
    if not numbers or not seeds or len(set(seeds)) != len(seeds):
        raise ThresherError(
            f"seeds of {where} is {seeds!r}", "give how many, or a list of different whole numbers"
        )
    return tuple(seeds)


def _known_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = set(known)
    for key in table:
        if key in OWNED and key not in names:
            raise ThresherError(
                f'"{key}" in {where} is for the study to set',
                "write seeds = 3" if key == "seed" else "leave it out",
            )
        if key not in names:
            raise ThresherError(f'there is no "{key}" in {where}', nearest(key, names))


def _table(content: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    return _checked_table(content.get(key, {}), f"[{key}] of {where}")


def _checked_table(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ThresherError(f"{where} is not a table", "write it as [name] and key = value lines")
    return table


def _list(content: dict[str, Any], key: str, where: str) -> list[Any]:
    value = content.get(key, [])
    if not isinstance(value, list):
        raise ThresherError(f"{key} of {where} is not a list", f'write {key} = ["…"]')
    return value


def _pairs(content: dict[str, Any], where: str) -> list[list[Any]]:
    pairs = _list(content, "pairs", where)
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ThresherError(f"pairs of {where} is {pairs!r}", 'write pairs = [["arm", "baseline"]]')
    return pairs
