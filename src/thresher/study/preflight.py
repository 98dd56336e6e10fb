"""Check, before the first task of a study runs, that every file that it reads can be used."""

from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import NotFoundError, ThresherError
from thresher.paths import RunPaths
from thresher.study.tasks import StudyPlan, StudyTask

FILES = ("run", "dynamics", "features", "also", "weights")
SELECTIONS = ("selection", "selections", "like")


def check_inputs(plan: StudyPlan) -> None:
    """Check the packs, selections, runs, features and weights that unfinished tasks read.

    Outputs of the study's own steps are not checked: they do not exist yet.

    Raises:
        ThresherError: The first input that is missing or does not fit its data; the message names
            the trial or step.
    """
    outputs = {str(step.out) for step in plan.steps.values()}
    checked: set[tuple[str, ...]] = set()
    open_pack = cache(Pack.open)
    for task in plan.tasks.values():
        if task.finished:
            continue
        data = str(task.settings["data"])
        checks: dict[tuple[str, ...], Callable[[], object]] = {(data,): partial(open_pack, data)}
        for key in FILES:
            for path in _paths(task, key, outputs):
                checks[key, path] = partial(_check_file, key, Path(path))
        for key in SELECTIONS:
            for path in _paths(task, key, outputs):
                checks[data, key, path] = partial(_check_selection, path, data, open_pack)
        for inputs, check in checks.items():
            if inputs not in checked:
                checked.add(inputs)
                _run(check, task)


def _paths(task: StudyTask, key: str, outputs: Iterable[str]) -> list[str]:
    """Return the paths under `key` that are not outputs of other steps."""
    value = task.settings.get(key) or []
    paths = value if isinstance(value, list) else [value]
    return [str(path) for path in paths if str(path) not in outputs]


def _check_file(key: str, path: Path) -> None:
    if key in ("run", "dynamics") and path.is_dir() and not RunPaths(path).config.exists():
        raise NotFoundError(f"{path} is not a training run: it has no config.json")
    if not path.exists():
        raise NotFoundError(f"{key} {path} not found", "check the path")


def _check_selection(path: str, data: str, open_pack: Callable[[str], Pack]) -> None:
    Selection.load(path).indices(open_pack(data))


def _run(check: Callable[[], object], task: StudyTask) -> None:
    try:
        check()
    except ThresherError as error:
        place = task.name if task.is_trial else f"[steps.{task.step}]"
        error.what = f"{place}: {error.what}"
        raise
