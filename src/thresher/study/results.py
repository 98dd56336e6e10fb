"""The results of a study's trials, as numbers to compare."""

import contextlib
import math
import reprlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.paths import RunPaths
from thresher.read_errors import unreadable
from thresher.study.definition import SHARPNESS, StudyDefinition, check_metric
from thresher.study.guessing import guess
from thresher.study.reported import POINTS, TO_TARGET
from thresher.study.selecting import hold_out
from thresher.study.status import StudyStatus
from thresher.study.tasks import StudyPlan, StudyTask, Values
from thresher.study.tune import reported_trials


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study and its result.

    To analyse results of another training program, give `cell`, `seed` and `value`.
    """

    cell: Values
    """Values of the axes, such as {"batch_size": 256, "selection": "full"}."""
    seed: int
    """Trials with the same seed are compared with each other."""
    value: float | None = None
    """The metric that is compared; accuracy in points (percent). None if there is no result."""
    name: str = ""
    """Name of the trial's folder."""
    state: str = "finished"
    """finished, running, queued, failed or waiting."""
    error: str = ""
    """Why the trial failed."""
    reported: bool = True
    """False for a candidate that tuning did not choose."""
    status: str | None = None
    """How training ended: finished, target (reached) or diverged."""
    accuracy: float | None = None
    """Test accuracy in points; a diverged run without accuracy counts as guessing."""
    validation_accuracy: float | None = None
    """Validation accuracy in points; a diverged run without one counts as guessing."""
    loss: float | None = None
    """Test loss."""
    validation_loss: float | None = None
    train_loss: float | None = None
    steps: int | None = None
    samples: int | None = None
    """Samples trained on, repeats included."""
    epochs: float | None = None
    seconds: float | None = None
    """Training time."""
    images_per_s: float | None = None
    noise_scale: float | None = None
    """Gradient noise scale, if measured."""
    top_eigenvalue: float | None = None
    """Largest eigenvalue of the Hessian of the training loss, if measured."""
    loss_rise: float | None = None
    """By how much random perturbations of the weights raise the training loss, if measured."""
    time_to_target: float | None = None
    """Seconds until the target was reached."""
    steps_to_target: int | None = None
    """Steps until the target was reached."""
    end: float | None = field(default=None, repr=False)
    """Time or steps at which a run without `value` was last seen; default: `seconds` or `steps`."""
    peak_lr: float | None = None
    """Learning rate after warm-up."""
    warmup_epochs: float | None = None
    global_batch: int | None = None
    per_worker_batch: int | None = None
    workers: int | None = None
    train_samples: int | None = None
    """Training samples after selection and hold-out."""
    device: str = ""
    """GPU or processor."""
    draws: dict[str, str] = field(default_factory=dict, repr=False)
    """Which outcome of each random step (a trained extractor, a selection) the trial uses, by the
    name of the step. Trials with the same outcome share its luck."""
    correct: np.ndarray | None = field(default=None, repr=False, compare=False)
    """Which test images are predicted correctly, (images,) of bool; None if unknown."""
    tested_on: str = field(default="", repr=False)
    """Digest of the ids of these images, in their order; "" if unknown."""
    made_with: dict[str, str] = field(default_factory=dict, repr=False)
    """Versions, hardware and commit, by name."""

    def to_dict(self) -> dict[str, Any]:
        """Return one flat row of JSON values; a column per axis and number."""
        row = {key: getattr(self, key) for key in (*POINTS, *_COPIED, *TO_TARGET, *SHARPNESS)}
        row |= {f"resolved_{key}": getattr(self, key) for key in _RESOLVED}
        for key in ("train_samples", "device", "value", "state", "error", "reported"):
            row[key] = getattr(self, key)
        return {"trial": self.name, "seed": self.seed, **row, **self.cell}


def plain_trial(trial: Any) -> Trial:
    """Return the trial with a seed and a value of Python's own; a value may be a tensor of one.

    Raises:
        InvalidValueError: They are no numbers, an axis has no plain value, or this is no trial.
    """
    if not isinstance(trial, Trial):
        raise InvalidValueError(f"trials must be a list of `Trial`, got {reprlib.repr(trial)}")
    for axis, value in trial.cell.items():
        if not _is_plain(value):
            what = f"{axis} must be text or a number, got {reprlib.repr(value)} {_place(trial)}"
            raise InvalidValueError(what, "give every trial a value of each axis")
    try:
        seed = int(trial.seed)
        if seed != float(trial.seed):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        what = f"the seed of a trial must be an integer {_place(trial)}"
        raise InvalidValueError(what) from None
    value = trial.value
    if type(trial.seed) is int and type(value) in (float, type(None)):
        return trial
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = None if value is None else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise InvalidValueError(
            f"the value of a trial must be a number, got {reprlib.repr(value)} {_place(trial)}"
        ) from None
    return replace(trial, seed=seed, value=value if isinstance(value, int | float) else number)


def _place(trial: Trial) -> str:
    return f"({reprlib.repr(trial.cell)}, seed {reprlib.repr(trial.seed)})"


def _is_plain(value: Any) -> bool:
    """Return whether trials with this value of an axis can be found again: not by NaN or a list."""
    equal = value == value  # a missing value, of any kind, is not equal to itself
    return isinstance(value, Hashable) and isinstance(equal, bool | np.bool_) and bool(equal)


_COPIED = (
    *("status", "loss", "validation_loss", "train_loss", "steps", "samples"),
    *("epochs", "seconds", "images_per_s", "noise_scale"),
)
NETWORK_FILE = "file of network"
_RESOLVED = ("peak_lr", "warmup_epochs", "global_batch", "per_worker_batch", "workers")


def read_trials(
    study: StudyDefinition, plan: StudyPlan, status: StudyStatus, metric: str
) -> list[Trial]:
    """Read every trial except candidates that tuning rejected before they ran."""
    if not study.runs_command:
        check_metric(metric)
    packs = open_data(plan).items()
    classes = {data: None if pack is None else len(pack.classes) for data, pack in packs}
    reported = {task.name for task in reported_trials(study, plan)}
    trials = []
    for one in status.trials:
        if one.state != "not chosen":
            state = {"state": one.state, "error": one.error, "reported": one.name in reported}
            task = plan.trials[one.name]
            count = classes[task.settings.get("data")]
            trials.append(_read(task, metric, count, draws=_draws(task, plan), **state))
    return trials


def _draws(task: StudyTask, plan: StudyPlan) -> dict[str, str]:
    """Return the training and selection steps that a task depends on, and which instance.

    The selection that a control only matches in size (`like`) is left out.
    """
    draws: dict[str, str] = {}
    for step in (plan.steps[name] for name in task.needs):
        if str(step.out) == task.settings.get("like"):
            continue
        draws |= _draws(step, plan)
        if step.kind in ("train", "select"):
            draws[step.step] = step.name
    return draws


def open_data(plan: StudyPlan) -> dict[str | None, Pack | None]:
    """Open the data sets of the trials; None without one, or on a machine that lacks it."""
    packs: dict[str | None, Pack | None] = {}
    for data in {trial.settings.get("data") for trial in plan.trials.values()}:
        packs[data] = None
        with contextlib.suppress(ThresherError):
            packs[data] = None if data is None else Pack.open(data)
    return packs


def _network_file(task: StudyTask) -> dict[str, str]:
    """Return the digest of the file of a network of one's own, as the run imported it."""
    model = str(task.settings.get("model"))
    digest = task.recorded.get("model_source") if ":" in model else None
    return {f"{NETWORK_FILE} {model}": str(digest)[:12]} if digest else {}


def changed_networks(trials: Iterable[Trial]) -> list[str]:
    """Return a sentence for each network whose file was changed between runs."""
    used: dict[str, set[str]] = {}
    for trial in trials:
        for key, value in trial.made_with.items():
            if key.startswith(NETWORK_FILE):
                used.setdefault(key, set()).add(value)
    return [
        f"The {key} was changed between runs: {len(values)} versions of it are compared."
        for key, values in used.items()
        if len(values) > 1
    ]


def _read(task: StudyTask, metric: str, classes: int | None, **state: Any) -> Trial:
    """Read one result; what a run that diverged does not have is that of guessing.

    `classes` is the number of classes; None if the data is not here.
    """
    result = task.result
    resolved = _table(result, "resolved")
    predicts = result.get("accuracy") is not None
    if result.get("status") == "diverged":
        data = task.recorded_data
        validates = data.get("validation", hold_out(task.settings).size)
        wanted = ("accuracy", metric, *(["validation_accuracy"] if validates else []))
        values = guess(wanted, classes or data.get("classes"))
        result |= {key: value for key, value in values.items() if result.get(key) is None}
    numbers: Values = {key: result.get(key) for key in _COPIED}
    numbers |= {key: resolved.get(key) for key in _RESOLVED}
    for key in POINTS:
        share = result.get(key)
        numbers[key] = 100 * share if share is not None and math.isfinite(share) else None
    reached = result.get("time_to_target")
    if not isinstance(reached, dict):
        reached = {"seconds": reached}
    numbers["time_to_target"] = reached.get("seconds")
    numbers["steps_to_target"] = reached.get("steps", result.get("steps_to_target"))
    sharpness = _table(result, "sharpness")
    before, after = sharpness.get("loss"), sharpness.get("perturbed_loss")
    numbers["top_eigenvalue"] = sharpness.get("top_eigenvalue", result.get("top_eigenvalue"))
    rise = result.get("loss_rise") if before is None or after is None else after - before
    numbers["loss_rise"] = rise
    numbers["end"] = numbers["steps" if metric == "steps_to_target" else "seconds"]
    own = task.kind == "command" and metric not in (*POINTS, *TO_TARGET)
    value = result.get(metric) if own else numbers[metric]
    if metric == "seconds" and result.get("status") == "diverged":
        value = None  # it ended early, which is not faster
    if value is None and result and task.kind == "command" and metric not in TO_TARGET:
        raise InvalidValueError(
            f'trial {task.name} did not report "{metric}": it is not in {task.mark}',
            "choose another metric",
        )
    correct = _correct(task) if metric == "accuracy" and predicts else None
    order = None if correct is None else task.recorded_data.get("test_order")
    return Trial(
        cell=dict(task.cell or {}),
        seed=task.seed or 0,
        value=value,
        name=task.name,
        train_samples=resolved.get("samples"),
        device=_device_name(result.get("hardware") or {}),
        correct=correct,
        tested_on=str(order or ""),
        made_with=_made_with(result) | _network_file(task),
        **numbers,
        **state,
    )


def _table(result: Values, key: str) -> Values:
    """Return a table of a result; empty if there is none, or if a command reports such a number."""
    value = result.get(key)
    return value if isinstance(value, dict) else {}


def _correct(task: StudyTask) -> np.ndarray | None:
    """Read which test images were predicted correctly; None for runs that did not record it."""
    path = RunPaths(task.out).correct
    try:
        packed = np.load(path, allow_pickle=False)
        return np.unpackbits(packed, count=task.recorded_data["test"]).astype(bool)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if refused := unreadable(path, error):
            raise refused from None
        return None


def _device_name(hardware: Values) -> str:
    keys = ("gpu", "processor", "cpu", "system")
    value = next((hardware[key] for key in keys if hardware.get(key)), "")
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _made_with(result: Values) -> dict[str, str]:
    groups = [result.get(key) or {} for key in ("versions", "hardware")]
    values = {key: str(value) for group in groups for key, value in group.items()}
    if result.get("git_commit"):
        commit, *changes = str(result["git_commit"]).partition("+")
        values["git commit"] = "".join([commit[:12], *changes])
    return values


def to_json_values(value: Any) -> Any:
    """Convert numpy numbers to Python's, infinities and NaN to None, and keys to text."""
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_values(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
