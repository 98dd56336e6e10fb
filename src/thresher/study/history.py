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
from thresher.paths import StudyPaths, write_text
from thresher.study import reading
from thresher.study.definition import ComparisonConfig
from thresher.study.tasks import Values

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
    lines = _read(paths.comparisons)
    if not lines and finished and paths.definition.is_file():
        lines = [Line.of(reading.load(paths.definition), 0)]
    now = Line.of(config, finished)
    if not lines or lines[-1].compared != now.compared:
        lines.append(now)
    text = "".join(f"{json.dumps(asdict(line))}\n" for line in lines)
    if not paths.comparisons.exists() or paths.comparisons.read_text(encoding="utf-8") != text:
        write_text(paths.comparisons, text)


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


def _read(path: Path) -> list[Line]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        entries = [json.loads(line) for line in lines]
        return [Line(entry["finished"], dict(entry["compared"])) for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise InvalidValueError(f"{path} is damaged", "restore it from a copy") from None


def _text(value: Any) -> str:
    return "the default" if value is None or value == [] else json.dumps(value)
