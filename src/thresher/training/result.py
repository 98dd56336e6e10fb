"""The result of a training run: what `train` returns and `result.json` holds."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from thresher.errors import InvalidValueError
from thresher.paths import RUN_FORMAT, RunPaths, as_path, check_format, read_json
from thresher.training.config import TrainConfig
from thresher.training.resolved import Resolved

Status = Literal["finished", "target", "diverged", "stopped"]
BEFORE_AUTO = {"precision": "fp32", "decoder": "cpu"}
"""Options of a run that does not name them, from a version without `auto`."""


@dataclass(frozen=True)
class TargetReached:
    """When a run reached `target_accuracy` or `target_loss`."""

    seconds: float
    """Training time, evaluations not counted."""
    samples: int
    steps: int


@dataclass(frozen=True)
class Sharpness:
    """Sharpness of the loss on a subset of the training samples."""

    top_eigenvalue: float | None
    """Largest eigenvalue of the Hessian of the mean loss; None if it is not finite, as is every
    loss here."""
    iterations: int
    """Hessian-vector products that it took; at most 25."""
    loss: float | None
    """Mean loss."""
    perturbed_loss: float | None
    """Mean loss after a perturbation of every parameter tensor by `scale` times its norm in a
    random direction, averaged over five perturbations."""
    scale: float
    samples: int
    """Number of samples."""


@dataclass(frozen=True)
class PackIdentity:
    """The pack that a run was trained on."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a training run; the fields are the keys of `result.json`.

    Numbers that are not finite or were not measured are None.

    Example:
        >>> result = RunResult.load("runs/baseline")  # doctest: +SKIP
        >>> result.accuracy, result.resolved.peak_lr  # doctest: +SKIP
        (0.931, 0.4)
    """

    status: Status
    """finished, target (it was reached), diverged (a loss was not finite) or stopped (by a
    signal; the run can be resumed)."""
    accuracy: float | None
    """On the test split, or the validation split of a pack without one, from 0 to 1."""
    loss: float | None
    """Mean cross-entropy on the same split."""
    validation_accuracy: float | None
    """On the samples held out by `validation`."""
    validation_loss: float | None
    """Mean cross-entropy on those samples."""
    train_loss: float | None
    """Mean training loss of the last epoch; with InfoBatch, weighted as the gradients are."""
    steps: int
    """Optimizer steps."""
    samples: int
    """Training samples seen, repetitions counted."""
    epochs: float
    """`samples` divided by the number of training samples."""
    seconds: float
    """Training time, evaluations and checkpoints not counted."""
    wall_seconds: float
    """Time from the first step to the end."""
    images_per_s: float | None
    """`samples / seconds`."""
    time_to_target: TargetReached | None
    """When the target was reached; None if it was not, or if there was none."""
    noise_scale: float | None
    """The batch size that the gradient noise scale suggests, if it was measured."""
    sharpness: Sharpness | None = None
    """Sharpness of the training loss at the end, if it was measured."""
    resolved: Resolved
    """Every number derived from the configuration, with the micro-batch that was really used."""
    config: TrainConfig
    """The configuration of the run."""
    versions: dict[str, str]
    """Versions of Thresher, Python and the packages that matter."""
    hardware: dict[str, str | int]
    """Processor, cores and GPU."""
    input_wait_share: float | None = None
    """Share of `seconds` for which the device waited for images, the wait for the first batch, in
    which processes that decode start, included."""
    git_commit: str | None
    """Commit of the checkout that trained; None for an installed package."""
    data: PackIdentity
    """Name and fingerprint of the pack."""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        fields = {**dataclasses.asdict(self), "config": self.config.to_dict()}
        return {"format": RUN_FORMAT, **fields}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the result") -> "RunResult":
        """Build a result from the content of `result.json`; `source` names it in errors."""
        check_format(values, RUN_FORMAT, source)
        try:
            reached, sharpness = values["time_to_target"], values.get("sharpness")
            nested = {
                "resolved": Resolved(**values["resolved"]),
                "config": TrainConfig.from_dict({**BEFORE_AUTO, **values["config"]}),
                "time_to_target": None if reached is None else TargetReached(**reached),
                "sharpness": None if sharpness is None else Sharpness(**sharpness),
                "data": PackIdentity(**values["data"]),
            }
            flat = {name: value for name, value in values.items() if name != "format"}
            return cls(**{**flat, **nested})
        except (KeyError, TypeError) as error:
            raise InvalidValueError(f"{source} is not a run's result: {error}") from None

    @classmethod
    def load(cls, run: Path | str) -> "RunResult":
        """Read the result of a finished run from its folder, which may have been moved.

        Raises:
            NotFoundError: The folder holds no finished run.
        """
        path = RunPaths(as_path(run, "run")).result
        result = cls.from_dict(read_json(path, "run's result"), str(path))
        return replace(result, config=replace(result.config, out=str(run)))
