"""What a study compared while it ran: a comparison chosen after seeing results is not primary.

`comparisons.jsonl` in the study's folder has a line for each state of the options that decide what
is compared, with the number of trials that were finished then.
"""

import itertools
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError
from thresher.paths import StudyPaths, write_text
from thresher.study import reading
from thresher.study.definition import ComparisonConfig

KEYS = tuple(field.name for field in fields(ComparisonConfig))


def record(root: Path, config: ComparisonConfig, finished: int) -> None:
    """Add a line if `config` differs from the last one; `finished` counts the finished trials.

    A study of an earlier version has no lines; its study file is the first one then.
    """
    paths = StudyPaths(root)
    lines = _read(paths.comparisons)
    if not lines and finished and paths.definition.is_file():
        lines = [_line(reading.load(paths.definition), 0)]
    if not lines or lines[-1]["compared"] != _compared(config):
        lines.append(_line(config, finished))
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    if not paths.comparisons.exists() or paths.comparisons.read_text(encoding="utf-8") != text:
        write_text(paths.comparisons, text)


def changes(root: Path, config: ComparisonConfig, finished: int) -> list[str]:
    """Return a sentence for each option that was changed after trials had finished."""
    lines = _read(StudyPaths(root).comparisons)
    texts = []
    for before, after in itertools.pairwise([*lines, _line(config, finished)]):
        old, new = before["compared"], after["compared"]
        runs = after["finished"]
        count = f"{runs} run{'s' if runs != 1 else ''}"
        texts += [
            f"{key} was changed after {count}, from {_text(old.get(key))} to "
            f"{_text(new.get(key))}: what is chosen after seeing results is exploratory."
            for key in KEYS
            if runs and old.get(key) != new.get(key)
        ]
    return texts


def _line(config: ComparisonConfig, finished: int) -> dict[str, Any]:
    return {"finished": finished, "compared": _compared(config)}


def _compared(config: ComparisonConfig) -> dict[str, Any]:
    """Return the options as JSON values."""
    values = {key: getattr(config, key) for key in KEYS}
    return dict(json.loads(json.dumps(values)))


def _read(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    try:
        entries = [json.loads(line) for line in lines]
        return [{"finished": e["finished"], "compared": dict(e["compared"])} for e in entries]
    except (ValueError, KeyError, TypeError):
        raise InvalidValueError(f"{path} is damaged", "restore it from a copy") from None


def _text(value: Any) -> str:
    return "the default" if value is None or value == [] else json.dumps(value)
