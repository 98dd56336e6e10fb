"""Notice that files outside a study were changed after steps and trials had used them.

`inputs.json` in the study's folder holds, for each task that was started, a digest of the packs,
features, runs and selections that it reads, and of the scripts, filters and extractors of one's
own that it runs. A study of an earlier version has no such file; what its tasks used is unknown,
and nothing is checked. Runs record their data, selection, weights, network and batch sizes
themselves, see `preflight`.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.data.digest import file_sha256
from thresher.data.pack import Pack, find_pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError, ThresherError
from thresher.models.embed_config import HUGGING_FACE
from thresher.models.features import FeaturePaths, ids_beside
from thresher.models.registry import source_file
from thresher.paths import (
    PackPaths,
    RunPaths,
    SelectionPaths,
    StudyPaths,
    check_format,
    read_json,
    write_json,
)
from thresher.plugins import module_file
from thresher.select.filters.registry import FILTERS
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.training.pruners import LIKE

FORMAT = 1
SELECTIONS = ("like", "selections")
KEYS = {
    "select": ("data", "run", "dynamics", "features", "also", "file", "filter", *SELECTIONS),
    "embed": ("data", "run", "weights", "model"),
    "train": ("branch_from", "dynamic"),
    "command": ("data", "arguments"),
}
"""Settings that name inputs, by the kind of a task."""
NAMED_AFTER = {"model": HUGGING_FACE, "dynamic": LIKE}
"""Settings that name an input only after this text."""
SCRIPTS = (".py", ".sh")
"""Ends of those arguments of a command that are looked at if they are files."""


@dataclass(frozen=True)
class InputState:
    """What an input holds."""

    content: str
    """Digest of its content."""
    changed: list[list[int]]
    """Size and time of the last change of each of its files: if they are the same, so is it."""


class InputRecord:
    """The inputs of the tasks of a study, as they were when each task was started."""

    def __init__(self, root: Path, plan: StudyPlan) -> None:
        self.file = StudyPaths(root).inputs
        self.own = {str(s.out): s.out.relative_to(root).as_posix() for s in plan.steps.values()}
        """What steps of the study write, and its place in the study's folder, which may be moved or
        called otherwise, as from another working directory."""
        self.places = set(self.own.values())
        entries = read_json(self.file, "record of inputs") if self.file.exists() else {}
        check_format(entries, FORMAT, str(self.file))
        self.tasks = {
            name: {self._in_folder(key): InputState(**state) for key, state in states.items()}
            for name, states in entries.get("tasks", {}).items()
        }
        self.known: dict[str, InputState] = {}
        """The latest state of each input that was looked at."""

    def add(self, tasks: Sequence[StudyTask]) -> None:
        """Record the inputs of tasks that are about to start."""
        if not tasks:
            return
        before = dict(self.tasks)
        for task in tasks:
            begun = task.kind == "train" and RunPaths(task.out).config.exists()
            if begun and task.name in self.tasks:
                continue  # a run that is resumed has read them already
            states = {}
            for key, path in self._inputs(task):
                with contextlib.suppress(ThresherError, OSError):  # the task itself will say so
                    states[self._name(key, path)] = self._state(key, path)
            self.tasks.pop(task.name, None)
            if states:
                self.tasks[task.name] = states
        if self.tasks != before:
            entries = {
                name: {key: asdict(state) for key, state in states.items()}
                for name, states in self.tasks.items()
            }
            write_json(self.file, {"format": FORMAT, "tasks": entries})

    def check(self, tasks: Iterable[StudyTask]) -> None:
        """Raise InvalidValueError if an input of finished tasks was changed since."""
        stale: dict[str, list[StudyTask]] = {}
        for task in tasks:
            if task.name in self.tasks and task.finished:
                for key, path in self._inputs(task):
                    if self._is_changed(task, key, path):
                        stale.setdefault(path, []).append(task)
        if not stale:
            return
        path, users = next(iter(stale.items()))
        kind = "trial" if users[0].is_trial else "step"
        what = f"{len(users)} {kind}s" if len(users) > 1 else f"1 {kind}"
        also = "" if users[0].is_trial else " and of the trials that depend on them"
        raise InvalidValueError(
            f"{path} was changed after {what} that used it had finished (such as {users[0].name})",
            f"restore it, or remove the folders of these {kind}s{also} to run them again",
        )

    def _is_changed(self, task: StudyTask, key: str, path: str) -> bool:
        name = self._name(key, path)
        before = self.tasks[task.name].get(name)
        if before is None:
            return False
        self.known.setdefault(name, before)
        with contextlib.suppress(ThresherError, OSError):  # what is gone was not changed
            return self._state(key, path).content != before.content
        return False

    def _inputs(self, task: StudyTask) -> list[tuple[str, str]]:
        """Return (key, path) of what the task reads.

        Of what other steps of the study write, only selections can change: by people's decisions.
        """
        named = [(key, _named(key, text)) for key, text in task.texts(KEYS[task.kind])]
        return [
            (k, path) for k, path in named if path and (k in SELECTIONS or path not in self.own)
        ]

    def _name(self, key: str, path: str) -> str:
        """Return what the record calls an input."""
        return f"{key} {self.own.get(path, path)}"

    def _in_folder(self, name: str) -> str:
        """Return the name of a recorded input; earlier versions wrote the whole path of a step's
        selection."""
        key, _, path = name.partition(" ")
        place = "/".join(path.rsplit("/", 3)[-3:])  # steps/NAME/selection.parquet
        return f"{key} {place}" if place in self.places else name

    def _state(self, key: str, path: str) -> InputState:
        """Return the state of an input; its content is read only if its files have changed."""
        name = self._name(key, path)
        files = _files(key, path)
        stats = [file.stat() for file in files]
        changed = [[stat.st_size, stat.st_ctime_ns] for stat in stats]
        if name not in self.known or self.known[name].changed != changed:
            self.known[name] = InputState(_content(key, path, files), changed)
        return self.known[name]


def _named(key: str, text: str) -> str:
    """Return the path of the input that the value of a setting names; "" if it names none."""
    if key == "arguments":
        return text if text.endswith(SCRIPTS) and Path(text).is_file() else ""
    if key == "filter":
        return "" if text in FILTERS.names() else str(module_file(text) or "")
    if key == "model" and not text.startswith(HUGGING_FACE):
        return str(source_file(text) or "")
    return text.partition(NAMED_AFTER[key])[2] if key in NAMED_AFTER else text


def _files(key: str, path: str) -> list[Path]:
    """Return the files that decide what an input holds."""
    place = Path(path)
    if key == "data":
        return [PackPaths(find_pack(path)).meta]
    if key in SELECTIONS:
        log = SelectionPaths(place).overrides
        return [place, log] if log.exists() else [place]
    run, features = RunPaths(place), FeaturePaths(place)
    if run.config.exists():
        return [run.result if run.result.exists() else run.config]
    if features.meta.exists():
        return [features.meta, features.index, features.array]
    if place.is_dir():
        return sorted(file for file in place.iterdir() if file.is_file())
    ids = ids_beside(place)
    return [place, ids] if place.suffix == ".npy" and ids.exists() else [place]


def _content(key: str, path: str, files: list[Path]) -> str:
    if key == "data":
        pack = Pack.open(path)  # the fingerprint says nothing of splits
        places = zip(pack.ids.to_pylist(), pack.splits.to_pylist(), strict=True)
        text = "\n".join(sorted(f"{id}\t{split}" for id, split in places))
        return hashlib.sha256(f"{pack.fingerprint}\n{text}".encode()).hexdigest()
    if key in SELECTIONS:
        selection = Selection.load(path)
        scores = hashlib.sha256(selection.score.tobytes()).hexdigest()
        return f"{selection.digest} {scores}" if key == "selections" else selection.digest
    return hashlib.sha256("".join(map(file_sha256, files)).encode()).hexdigest()
