"""Read a study file and validate it; errors name the file, the table, the key and the value."""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher import options
from thresher.errors import InvalidValueError, NotFoundError, nearest
from thresher.home_paths import with_home
from thresher.paths import check_format
from thresher.read_errors import unreadable
from thresher.study import command
from thresher.study.definition import (
    ARM,
    FULL,
    SHARPNESS,
    StepDefinition,
    StudyDefinition,
    check_metric,
)
from thresher.study.primary import Compared, named_comparisons
from thresher.study.selecting import HOLD_OUT
from thresher.study.settings import SET_BY_STUDY, check_option, training_options
from thresher.study.summaries import CellSummary
from thresher.study.tasks import Values

FORMAT = 1
"""Version of the study file, in its copy in the study's folder; a file without `format` has 1."""
STEP_KINDS = ("train", "embed", "select")
RESERVED = frozenset(info.name for info in options.describe(CellSummary)) | {
    *("trial", "seed", "value", "state", "error", "reported", "status", "device"),
}
"""Columns of the tables of results, which an axis cannot be called."""
MOST_SEEDS = 10_000
LONGEST_STEP_NAME = 80
CheckValue = Callable[[str, Any, str], None]
"""Checks a value by its name; the third argument is its table, for messages."""


def load(path: Path | str) -> StudyDefinition:
    """Read and validate a study file."""
    return parse(_text(path), str(path))


def parse(text: str, where: str = "the study") -> StudyDefinition:
    """Validate the text of a study file; `where` names it in messages."""
    return from_dict(_content(text, where), where, text)


def check_stored(path: Path) -> None:
    """Refuse to overwrite the study file `path` if a newer version of Thresher wrote it."""
    if path.is_file():
        check_format(_content(_text(path), str(path)), FORMAT, str(path))


def _text(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"study file {path} not found", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        wrong = InvalidValueError(f"{path} is not a study file", "give a TOML file")
        raise unreadable(path, error) or wrong from None


def _content(text: str, where: str) -> Values:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidValueError(f"{where} is not valid TOML: {error}") from None


def from_dict(content: Values, where: str = "the study", text: str = "") -> StudyDefinition:
    """Validate a study given as nested dictionaries in the shape of the TOML file."""
    check_format(content, FORMAT, where)
    if "format" not in content:
        text = f"format = {FORMAT}\n{text}"
    content = {key: with_home(v) for key, v in content.items() if key != "format"}
    known = {info.name for info in options.describe(StudyDefinition)} - {"text"}
    _check_keys(content, known, where)
    base, grid, arms, steps, executor = (
        _table(content.get(key, {}), f"[{key}] of {where}")
        for key in ("base", "grid", "arms", "steps", "executor")
    )
    tables = {f"[base] of {where}": base}
    for name, arm in arms.items():
        tables[f"[arms.{name}] of {where}"] = _table(arm, f"[arms.{name}] of {where}")
    runs_command = any(command.COMMAND in table for table in tables.values())
    check_value = _check_placeholder if runs_command else check_option
    for place, table in tables.items():
        if not runs_command:
            _check_keys(table, training_options(), place)
        for key, value in table.items():
            check_value(key, value, place)
    if runs_command:
        _check_commands(tables, grid, where)
    else:
        _check_keys(grid, training_options(), f"[grid] of {where}")
    for axis, tried in grid.items():
        _check_axis(axis, tried, f"[grid] of {where}", check_value)
    # "" and 0 meant "default" in files of version 0.1.
    former = {"compare": "", "tune_seeds": 0}
    values: Values = {
        **{key: value for key, value in content.items() if value != former.get(key, ...)},
        "base": base,
        # Lists become tuples, so that cells can be dictionary keys.
        "grid": {axis: [_hashable(value) for value in tried] for axis, tried in grid.items()},
        "arms": arms,
        "exclude": [_excluded(table, where) for table in _list(content.get("exclude", []), where)],
        "steps": _steps(steps, where),
        "executor": executor,
        "baseline": _hashable(content.get("baseline")),
        "pairs": _hashable(content.get("pairs", [])),
        "seeds": _seeds(content.get("seeds", 3), where),
        "text": text,
    }
    definition = options.from_mapping(StudyDefinition, values, where)
    _check_relations(definition, where)
    return definition


def check_axis_name(name: str) -> None:
    """Raise InvalidValueError if the column of an axis of trials would replace one of results."""
    if name in RESERVED - training_options():
        what = f'an axis cannot be called "{name}", which names a column of results'
        raise InvalidValueError(what, "choose another name")


def _check_placeholder(key: str, value: Any, where: str) -> None:
    """Check the name and the value of a placeholder of a command."""
    if key in (*command.SET_BY_STUDY, ARM):
        raise InvalidValueError(
            f'"{key}" cannot be set in {where}: the study sets it',
            "write seeds = 3" if key == "seed" else "choose another name",
        )
    if not key.isidentifier() or key in RESERVED:
        reason = "names a column of results" if key in RESERVED else "is not a name"
        raise InvalidValueError(f'"{key}" {reason} (in {where})', "choose another name")
    if key in ("data", *HOLD_OUT):
        check_option(key, value, where)
    else:
        command.check_value(key, value, where)


def _check_commands(tables: dict[str, Values], grid: Values, where: str) -> None:
    """Check the commands of [base] and [arms], and that they use every axis."""
    if command.COMMAND in grid:
        raise InvalidValueError(
            f"command cannot be an axis of [grid] (in {where})",
            "compare commands as [arms.NAME], each with its command",
        )
    used: set[str] = set()
    for place, table in tables.items():
        if command.COMMAND in table:
            used.update(command.placeholders(table[command.COMMAND], place))
    command.check_unused(grid, used, where)
    for place, table in list(tables.items())[1:]:
        command.check_unused([key for key in table if key != command.COMMAND], used, place)


def _check_axis(axis: str, values: Any, where: str, check_value: CheckValue) -> None:
    if not isinstance(values, list) or not values:
        raise InvalidValueError(
            f"{axis} must be a list of values, got {values!r} (in {where})", f"write {axis} = [ … ]"
        )
    for value in values:
        check_value(axis, value, where)
        if values.count(value) > 1:
            raise InvalidValueError(f"{axis} contains {value!r} twice (in {where})")


def _list(tables: Any, where: str) -> list[Any]:
    if not isinstance(tables, list):
        raise InvalidValueError(
            f"exclude must be a list of tables, got {tables!r} (in {where})",
            "write exclude = [{ AXIS = VALUE }]",
        )
    return tables


def _excluded(table: Any, where: str) -> dict[str, list[Any]]:
    """Return lists of values by axis."""
    table = _table(table, f"an entry of exclude in {where}")
    listed = {axis: v if isinstance(v, list) else [v] for axis, v in table.items()}
    return {axis: [_hashable(value) for value in values] for axis, values in listed.items()}


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _steps(tables: Values, where: str) -> dict[str, StepDefinition]:
    steps = {name: _step(name, table, where) for name, table in tables.items()}
    for name, step in steps.items():
        # One draw for all seeds would make its luck look like an effect of the control.
        if step.is_control and not {"each", "seed"} & set(tables[name]):
            model = steps.get(str(step.settings["like"]))
            each = ("seed", *(model.each if model is not None else ()))
            steps[name] = replace(step, each=tuple(dict.fromkeys(each)))
    return steps


def _step(name: str, table: Any, where: str) -> StepDefinition:
    place = f"[steps.{name}] of {where}"
    settings = dict(_table(table, place))
    if name == FULL:
        raise InvalidValueError(
            f'a step cannot be called "{FULL}"', f'"{FULL}" means no selection; rename {place}'
        )
    # The name becomes part of a folder's name.
    if not re.fullmatch(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]*", name) or len(name) > LONGEST_STEP_NAME:
        raise InvalidValueError(
            f"a step cannot be called {name!r} (in {where})",
            f"use a name without / and \\ that does not begin with a dot, of at most "
            f"{LONGEST_STEP_NAME} characters",
        )
    do = settings.pop("do", None)
    if do not in STEP_KINDS:
        raise InvalidValueError(
            f"do must be one of {', '.join(STEP_KINDS)}, got {do!r} (in {place})",
            nearest(str(do), STEP_KINDS) if do else "",
        )
    each = settings.pop("each", [])
    if not isinstance(each, list) or not all(isinstance(axis, str) for axis in each):
        raise InvalidValueError(
            f"each must be a list of axes, got {each!r} (in {place})", 'write each = ["seed"]'
        )
    draws = settings.pop("draws", None)
    if draws is not None and (type(draws) is not int or draws < 1 or "seed" not in each):
        raise InvalidValueError(
            f"draws must be an integer of at least 1, got {draws!r} (in {place})"
            if "seed" in each
            else f"draws has no effect without seed in each (in {place})",
            'write each = ["seed"] and draws = 4',
        )
    if do == "train":
        _check_keys(settings, training_options() | {"seed"}, place)
    return StepDefinition(name, do, settings, tuple(each), draws)


def _seeds(seeds: Any, where: str) -> list[Any]:
    if isinstance(seeds, int) and not isinstance(seeds, bool) and 0 < seeds <= MOST_SEEDS:
        return list(range(seeds))
    if isinstance(seeds, list) and seeds and len({str(seed) for seed in seeds}) == len(seeds):
        return seeds
    raise InvalidValueError(
        f"seeds must be an integer in [1, {MOST_SEEDS}] or a list of different integers, "
        f"got {seeds!r} (in {where})"
    )


def _check_relations(study: StudyDefinition, where: str) -> None:
    """Check what concerns several keys."""
    if not study.runs_command:
        _check_training_study(study, where)
    for key, axes in (("tune", study.tune), ("compare", [study.compare] if study.compare else [])):
        for axis in axes:
            text = f'{key} names "{axis}", which is not an axis of [grid] (in {where})'
            _check_known(axis, study.axes, text)
    if study.compare in study.tune:
        raise InvalidValueError(
            f'"{study.compare}" cannot be both tuned and compared (in {where})', "choose one"
        )
    _check_excluded(study, where)
    named = [value for pair in study.pairs for value in pair]
    named += [] if study.baseline is None else [study.baseline]
    for value in named if study.compared else []:
        text = f'"{value}" is not a value of {study.compared} (in {where})'
        _check_known(value, study.values(study.compared or ""), text)
    try:
        reported = {axis: study.values(axis) for axis in study.untuned_axes}
        compared = Compared(reported, study.compared, study.compared_pairs, list(study.cells))
        named_comparisons(study, compared)
    except InvalidValueError as error:
        error.what += f" (in {where})"
        raise
    for axis in study.grid:
        if any(axis in arm for arm in study.arms.values()):
            raise InvalidValueError(
                f'both [grid] and [arms] set "{axis}" (in {where})', "set it in one of them"
            )
    for step in study.steps.values():
        for axis in step.each:
            text = f'each names "{axis}", which is not an axis (in [steps.{step.name}] of {where})'
            _check_known(axis, [*study.axes, "seed"], text)


def _check_excluded(study: StudyDefinition, where: str) -> None:
    for table in study.exclude:
        for axis, values in table.items():
            _check_known(
                axis, study.axes, f'exclude names "{axis}", which is not an axis (in {where})'
            )
            for value in values:
                text = f'exclude names "{value}", which is not a value of {axis} (in {where})'
                _check_known(value, study.values(axis), text)
    if next(study.cells, None) is None:
        raise InvalidValueError(f"exclude leaves nothing to run (in {where})", "exclude less")


def _check_training_study(study: StudyDefinition, where: str) -> None:
    """Check what concerns studies of our own training; a command may report any metric."""
    if "data" not in study.base and "data" not in study.grid:
        raise InvalidValueError(f"data is required in {where}", "set data under [base]")
    try:
        check_metric(study.metric)
    except InvalidValueError as error:
        error.what += f" (in {where})"
        raise
    varied = [{**study.base, **arm} for arm in study.arms.values()] or [study.base]
    sizes = study.grid.get("validation") or [settings.get("validation") for settings in varied]
    if study.tune and not all(sizes):
        raise InvalidValueError(
            f"tune needs a validation split, because the test set must not choose (in {where})",
            "set validation under [base]: a count, or a share below 1",
        )
    measured = all(s.get("sharpness") for s in varied) or "sharpness" in study.grid
    if study.metric in SHARPNESS and not measured:
        raise InvalidValueError(
            f'metric "{study.metric}" needs runs that measure it (in {where})',
            "set sharpness = true under [base]",
        )


def _check_known(value: Any, known: Iterable[Any], message: str) -> None:
    if value not in known:
        raise InvalidValueError(message, nearest(str(value), map(str, known)))


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = set(known)
    for key in table:
        if key in SET_BY_STUDY and key not in names:
            raise InvalidValueError(
                f'"{key}" cannot be set in {where}: the study sets it',
                "write seeds = 3" if key == "seed" else "remove it",
            )
        _check_known(key, names, f'unknown option "{key}" in {where}')


def _table(table: Any, where: str) -> Values:
    if not isinstance(table, dict):
        raise InvalidValueError(f"{where} must be a table, got {table!r}", "write [name]")
    return table
