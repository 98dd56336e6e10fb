"""What a study compared while it ran: a comparison chosen after seeing results is not primary.

`comparisons.jsonl` in the study's folder has a line for each state of the options that decide what
is compared, with the number of trials that were finished then.
"""

import itertools
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, StudyPaths, write_text
from thresher.study import reading
from thresher.study.definition import ComparisonConfig
from thresher.study.tasks import StudyPlan, Values

KEYS = tuple(field.name for field in fields(ComparisonConfig))


@dataclass(frozen=True)
class Line:
    """One line of the file."""

    finished: int
    """Trials that were finished then."""
    compared: Values
    """The options, as JSON values."""

    @classmethod
    def of(cls, config: ComparisonConfig, finished: int) -> "Line":
        values = {key: getattr(config, key) for key in KEYS}
        return cls(finished, json.loads(json.dumps(values)))


def record(root: Path, config: ComparisonConfig, finished: int) -> None:
    """Add a line if `config` differs from the last one; `finished` counts the finished trials.

    A study of an earlier version has no lines; its study file is the first one then.
    """
    paths = StudyPaths(root)
    known = _read(paths.comparisons)
    lines = list(known)
    if not lines and finished and paths.definition.is_file():
        lines = [Line.of(reading.load(paths.definition), 0)]
    now = Line.of(config, finished)
    if not lines or lines[-1].compared != now.compared:
        lines.append(now)
    if lines != known:
        write_text(paths.comparisons, "".join(f"{json.dumps(asdict(line))}\n" for line in lines))


def changes(root: Path, config: ComparisonConfig, finished: int) -> list[str]:
    """Return a sentence for each option that was changed after trials had finished."""
    lines = _read(StudyPaths(root).comparisons)
    texts = []
    for before, after in itertools.pairwise([*lines, Line.of(config, finished)]):
        old, new, runs = before.compared, after.compared, after.finished
        count = f"{runs} run{'s' if runs != 1 else ''}"
        texts += [
            f"{key} was changed after {count}, from {_text(old.get(key))} to "
            f"{_text(new.get(key))}: what is chosen after seeing results is exploratory."
            for key in KEYS
            if runs and old.get(key) != new.get(key)
        ]
    return texts


def left_out(root: Path, plan: StudyPlan) -> list[str]:
    """Return a sentence about finished trials in the folder that the study no longer has.

    Those of an arm, a value or a seed that was removed after its results were seen.
    """
    folder = StudyPaths(root).trials
    known = {trial.out.name for trial in plan.trials.values()}
    names = [path.parent.name for path in folder.glob(f"*/{RunPaths(folder).result.name}")]
    others = sorted(set(names) - known)
    if not others:
        return []
    text = "1 finished trial" if len(others) == 1 else f"{len(others)} finished trials"
    return [
        f"{text} in the folder, such as {others[0]}, {'is' if len(others) == 1 else 'are'} not in "
        "the study file any more, so the verdicts leave them out: what is removed after seeing "
        "results makes the rest exploratory."
    ]


def _read(path: Path) -> list[Line]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        entries = [json.loads(line) for line in lines]
        return [Line(entry["finished"], dict(entry["compared"])) for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise InvalidValueError(f"{path} is damaged", "restore it from a copy") from None


def _text(value: Any) -> str:
    return "the default" if value is None or value == [] else json.dumps(value)
