"""Check, before the first task of a study runs, that every file that it reads can be used."""

import contextlib
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from thresher.data.digest import file_sha256
from thresher.data.pack import Pack, find_pack
from thresher.data.selection import Selection
from thresher.effect import without_effect
from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.models import registry
from thresher.models.embed_config import EFFICIENTNET, HUGGING_FACE
from thresher.paths import RunPaths
from thresher.study.reported import TO_TARGET
from thresher.study.selecting import hold_out
from thresher.study.tasks import StudyPlan, StudyTask
from thresher.training.batch_schedule import batch_phases, with_schedule_inline
from thresher.training.config import TrainConfig
from thresher.training.presets import preset
from thresher.training.record import late_target
from thresher.training.schedules import idle_rule, unreached

FILES = ("run", "dynamics", "features", "also", "weights")
SELECTIONS = ("selection", "selections", "like")


def check_inputs(plan: StudyPlan, programs: bool = True) -> None:
    """Check the packs, selections, runs, features and weights that unfinished tasks read, and that
    the data of finished runs is still the same and their selections keep the same samples, and that
    their initial weights, files of batch sizes and files of networks are the same.

    Outputs of the study's own steps are not checked: they do not exist yet. Raises a ThresherError
    for the first input that is missing or does not fit its data; it names the trial or step.
    `programs`: also check that the programs of commands, and files that Python is to run, are on
    this machine.
    """
    _check_data(plan)
    _check_decisions(plan)
    _check_option_files(plan)
    _check_hold_out(plan)
    outputs = {str(step.out) for step in plan.steps.values()}
    open_pack, check_model = cache(Pack.open), cache(registry.check)
    check_extractor = cache(_check_extractor)
    check_file, check_program = cache(_check_file), cache(_check_program)
    check_script = cache(_check_script)

    @cache
    def check_selection(path: str, data: str | None) -> None:
        selection = Selection.load(path)
        if data is not None:
            selection.indices(open_pack(data))

    for task in plan.tasks.values():
        if task.finished:
            continue
        data = str(task.settings["data"]) if "data" in task.settings else None
        try:
            if data is not None:
                open_pack(data)
            if programs and task.kind == "command":
                check_program(task.settings["arguments"][0])
                check_script(_script(task.settings["arguments"]))
            if task.kind == "train" and "model" in task.settings:
                check_model(str(task.settings["model"]))
            if task.kind == "embed" and task.settings.get("model"):
                check_extractor(str(task.settings["model"]))
            if task.kind == "train":
                config = _config(task)
                batch_phases(config, config.batch_size)
            listed = ("file",) if task.settings.get("filter") == "list" else ()
            for key, path in task.texts((*FILES, *listed, *SELECTIONS)):
                if path in outputs:
                    continue
                if key in SELECTIONS:
                    check_selection(path, data)
                else:
                    check_file(key, Path(path))
        except ThresherError as error:
            place = task.name if task.is_trial else f"[steps.{task.step}]"
            error.what = f"{place}: {error.what}"
            if "check the path" in error.fix:  # it may be meant relative to the study file
                error.fix += f"; relative paths begin in the current folder, {Path.cwd()}"
            raise


def check_measured(plan: StudyPlan, metric: str) -> None:
    """Refuse a study of our own runs if all that are still to run would end without the metric."""
    trials = [t for t in plan.trials.values() if t.kind == "train" and not t.finished]
    configs = [_config(trial) for trial in trials]
    if not configs:
        return
    open_pack = cache(Pack.open)
    tested = any(open_pack(config.data).test_split for config in configs)
    if metric in ("accuracy", "loss") and not tested:
        raise InvalidValueError(
            f"{configs[0].data} has no test images, so that no run has the metric {metric}",
            "pack it with --test 0.2, or set metric = "
            + ('"validation_accuracy"' if metric == "accuracy" else '"train_loss"'),
        )
    if metric == "validation_accuracy" and not any(
        _validates(config, open_pack(config.data)) for config in configs
    ):
        raise InvalidValueError(
            "no trial holds out images, so that no run has the metric validation_accuracy",
            "set validation under [base]: a count, or a share below 1",
        )
    aims = (
        config.target_accuracy is not None or config.target_loss is not None for config in configs
    )
    if metric in TO_TARGET and not any(aims):
        raise InvalidValueError(
            f"no trial has a target, so that no run has the metric {metric}",
            "set target_accuracy or target_loss under [base]",
        )


def _validates(config: TrainConfig, pack: Pack) -> bool:
    if config.validation is not None:
        return config.validation > 0
    return pack.test_split is None or config.hold_out.own_split(pack) is not None


def option_remarks(plan: StudyPlan) -> list[str]:
    """Return a sentence for each rule or schedule that changes nothing in some trials, for targets
    that end none of them early, and for options that have no effect in any trial."""
    trained = [trial.settings for trial in plan.trials.values() if trial.kind == "train"]
    sentences = dict.fromkeys(idle_rule(settings) for settings in trained)
    sentences |= dict.fromkeys(late_target(settings) for settings in trained)
    idle: dict[str, list[str]] = {}
    for config in (_config(trial) for trial in plan.trials.values() if trial.kind == "train"):
        batch = config.batch_size * (config.workers if config.scaling == "weak" else 1)
        sentences |= dict.fromkeys(unreached(config, config.epochs, batch))
        for name, sentence in without_effect(config, usual=preset(config.model)).items():
            idle.setdefault(name, []).append(sentence)
    sentences |= dict.fromkeys(sentence for each in idle.values() if all(each) for sentence in each)
    return [f"{sentence}." for sentence in sentences if sentence]


def _stale(
    plan: StudyPlan, changed: Callable[[StudyTask], str | None]
) -> list[tuple[StudyTask, str]]:
    """Return the finished tasks that used a file as it was before, with that file."""
    stale = []
    for task in plan.tasks.values():
        # Finished tasks need no files: those that are gone cannot have been changed.
        with contextlib.suppress(ThresherError, OSError):
            if task.finished and (file := changed(task)):
                stale.append((task, file))
    return stale


def _refuse_mixed_runs(kind: str, stale: list[tuple[StudyTask, str]]) -> None:
    """Refuse to mix new runs with finished ones that used another file of the same name."""
    if stale:
        what, (task, file) = "run" if len(stale) == 1 else "runs", stale[0]
        raise InvalidValueError(
            f"the {kind} {file} was changed after {len(stale)} {what} of the study had finished "
            f"(such as {task.name})",
            "restore it, or choose another folder for the study",
        )


def _check_data(plan: StudyPlan) -> None:
    open_pack, samples = cache(Pack.open), cache(_samples)

    def changed(task: StudyTask) -> str | None:
        if task.kind != "train":
            return None
        used = task.recorded_data
        name = str(task.settings["data"])
        now = open_pack(name).fingerprint
        if used.get("fingerprint", now) != now:
            return name
        if "samples" not in used or task.settings.get("selection") is not None:
            return None  # those with a selection are checked with its decisions
        # The fingerprint says nothing of splits: packed again, others may be for training.
        held = hold_out(task.settings)
        return name if used["samples"] != samples(name, None, held.size, held.seed) else None

    _refuse_mixed_runs("data", _stale(plan, changed))


def _check_decisions(plan: StudyPlan) -> None:
    """Refuse to compare new trials with finished ones that used a selection as it was before."""
    digest, samples = cache(lambda path: Selection.load(path).digest), cache(_samples)

    def changed(task: StudyTask) -> str | None:
        selection: str | None = task.settings.get("selection")
        if selection is None:
            return None
        if task.kind == "command":
            used, now = task.result.get("selection"), digest(selection)
        else:
            used, held = task.recorded_data.get("samples"), hold_out(task.settings)
            now = samples(str(task.settings["data"]), selection, held.size, held.seed)
        return selection if used is not None and used != now else None

    stale = _stale(plan, changed)
    if stale:
        task, selection = stale[0]
        what = "run" if task.step else "trial"
        count = f"{len(stale)} {what}s" if len(stale) > 1 else f"1 {what}"
        raise InvalidValueError(
            f"the selection {selection} or decisions on it were changed after {count} that used it "
            f"had finished (such as {task.name})",
            f"undo that, or remove the folders of these {what}s in {task.out.parent} to run them "
            "again",
        )


def _check_option_files(plan: StudyPlan) -> None:
    """Check the files of initial weights, of batch sizes and of networks of one's own."""
    digest, source_file = cache(file_sha256), cache(registry.source_file)

    def changed(task: StudyTask) -> str | None:
        named = any(task.settings.get(key) for key in ("weights", "batch_schedule"))
        source = source_file(str(task.settings.get("model"))) if task.kind == "train" else None
        if task.kind != "train" or not (named or source):
            return None
        run, config = task.recorded, _config(task)
        now = with_schedule_inline(config).batch_schedule
        if now != config.batch_schedule and run.get("config", {}).get("batch_schedule", now) != now:
            return config.batch_schedule
        if source and run.get("model_source", digest(source)) != digest(source):
            return str(source)
        used, weights = run.get("weights"), config.weights
        return weights if weights and used and used != digest(Path(weights)) else None

    _refuse_mixed_runs("file", _stale(plan, changed))


def _config(task: StudyTask) -> TrainConfig:
    return TrainConfig.from_dict({"out": "-", **task.settings})


def _samples(data: str, selection: str | None, size: float | None, seed: int) -> str:
    """Return the digest of the samples that a run with these options would train on."""
    from thresher.training.folder import samples_digest  # loads torch
    from thresher.training.split import DataConfig, split_samples

    pack = Pack.open(data)
    config = DataConfig(data=data, selection=selection, validation=size, split_seed=seed)
    return samples_digest(pack, split_samples(config, pack))


def _check_hold_out(plan: StudyPlan) -> None:
    """Refuse a step that trains on, or chooses among, samples that its trial holds out."""
    for trial in plan.trials.values():
        needs = [] if trial.finished else list(trial.needs)
        while needs:
            step = plan.steps[needs.pop()]
            needs += step.needs
            if step.kind == "embed" or not _same_data(step, trial):
                continue
            if not _same_hold_out(step, trial):
                raise InvalidValueError(
                    f"[steps.{step.step}] and trial {trial.name} hold out different samples "
                    f"({_described(step)} and {_described(trial)})",
                    "remove validation and split_seed from the step, or, if they vary, name their "
                    "axis in its each",
                )


def _same_data(step: StudyTask, trial: StudyTask) -> bool:
    """Return whether both use one pack, which may have several names: its name, and paths."""
    first, second = step.settings["data"], trial.settings.get("data")
    if first == second or second is None:
        return bool(first == second)
    with contextlib.suppress(ThresherError):  # one that is missing is reported later
        return find_pack(first).resolve() == find_pack(second).resolve()
    return False


def _same_hold_out(step: StudyTask, trial: StudyTask) -> bool:
    first, second = hold_out(step.settings), hold_out(trial.settings)
    if first == second:
        return True
    pack = Pack.open(trial.settings["data"])  # a count and a share may mean the same samples
    return np.array_equal(first.mask(pack), second.mask(pack))


def _described(task: StudyTask) -> str:
    held = hold_out(task.settings)
    if held.size is None:
        return "validation not set"
    return f"validation {held.size:g}, split_seed {held.seed}" if held.size else "no validation"


def _check_extractor(name: str) -> None:
    from thresher.models import hugging_face, pretrained  # load torch

    if name == EFFICIENTNET:
        pretrained.weights_file()
    elif name.startswith(HUGGING_FACE):
        hugging_face.check(name)
    else:
        registry.check(name)


def _check_program(name: str) -> None:
    if shutil.which(name) is None:
        raise NotFoundError(f'command: the program "{name}" was not found', "check its name")


def _script(arguments: list[str]) -> str | None:
    """Return the file that Python is to run; None if the command is none of Python's."""
    name, *words = arguments
    if not re.fullmatch(r"python[\d.]*", Path(name).name):
        return None
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-" or "c" in option or "m" in option:  # as in -um: no file, or not known
            return None
        if option.endswith(("X", "W")):  # its value follows
            words = words[1:]
    return words[0] if words else None


def _check_script(path: str | None) -> None:
    if path is not None and not Path(path).exists():
        raise NotFoundError(f'command: the file "{path}" was not found', "check the path")


def _check_file(key: str, path: Path) -> None:
    if key in ("run", "dynamics") and path.is_dir() and not RunPaths(path).config.exists():
        raise NotFoundError(f"{path} is not a training run: it has no run.json")
    if not path.exists():
        raise NotFoundError(f"{key} {path} not found", "check the path")
