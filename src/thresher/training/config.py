"""The configuration of a training run, composed of the groups that its parts declare."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher import options
from thresher.distributed.names import check_compress
from thresher.errors import InvalidValueError, NotFoundError, check_type
from thresher.foreign_data import instead_of
from thresher.models.batch_norm_mode import for_batch
from thresher.models.batch_norm_mode import parse as parse_batch_norm
from thresher.paths import RUN_FORMAT, as_path, check_format
from thresher.read_errors import unreadable
from thresher.training.augmentation import AugmentConfig
from thresher.training.batches import BatchConfig
from thresher.training.exchange.base import ExchangeConfig
from thresher.training.execution import ExecutionConfig
from thresher.training.model import ModelConfig
from thresher.training.optimizers import OptimizerConfig
from thresher.training.presets import preset
from thresher.training.record import RecordConfig, TargetConfig
from thresher.training.schedules import RateConfig
from thresher.training.sinks import check_sinks
from thresher.training.split import DataConfig, PrunerConfig


# Fields are listed in reverse order of the bases: a run's data first, its record last.
@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    RecordConfig,
    TargetConfig,
    ExchangeConfig,
    ExecutionConfig,
    OptimizerConfig,
    RateConfig,
    BatchConfig,
    ModelConfig,
    AugmentConfig,
    PrunerConfig,
    DataConfig,
):
    """Everything that a training run depends on.

    Each base class declares the options of one part, and functions take only the group they need.
    None means the default. `data` and `out` are required.

    Example:
        >>> config = TrainConfig(data="digits", out="runs/a", batch_size=64, lr=0.05)
        >>> config.optimizer
        'sgd'
    """

    @classmethod
    def for_model(cls, model: str, **options: Any) -> "TrainConfig":
        """Build a configuration with the settings that belong to a model, unless given here.

        Example:
            >>> TrainConfig.for_model("fast-cifar", data="cifar10", out="runs/b").optimizer
            'muon'
        """
        return cls(**{**preset(model), "model": model, **options})

    @classmethod
    def load(cls, file: Path | str, **options: Any) -> "TrainConfig":
        """Read a TOML or JSON file of options, or the `run.json` of a run; `options` win.

        Raises:
            NotFoundError: The file does not exist.
            InvalidValueError: It cannot be read, or an option is unknown or has a wrong value.
        """
        values = {**file_options(file), **options}
        return cls(**{**preset(values.get("model")), **values})

    def to_dict(self) -> dict[str, Any]:
        """Return the options as saved in `run.json`."""
        return options.to_mapping(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "") -> "TrainConfig":
        """Build a configuration from `run.json` or a study's table.

        Args:
            values: Options by name; those missing have their defaults.
            where: The file or table, for messages.

        Raises:
            InvalidValueError: An option is unknown, missing or has a value that is not allowed.
        """
        check_type(values, Mapping, "values", "a mapping of options")
        return options.from_mapping(cls, current_values(values), where)


def file_options(file: Path | str) -> dict[str, Any]:
    """Return the options that a file sets: TOML, JSON, or the `run.json` of a run."""
    path = as_path(file, "file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"there is no configuration at {path}", "check the path") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = f": {error}" if isinstance(error, tomllib.TOMLDecodeError) else ""
        fix = "give a TOML or JSON file of options"
        wrong = InvalidValueError(f"{path} is not a configuration{reason}", fix)
        raise unreadable(path, error) or wrong from None
    if isinstance(content, dict) and isinstance(content.get("config"), dict):
        check_format(content, RUN_FORMAT, str(path))
        content = content["config"]
    if not isinstance(content, dict):
        raise InvalidValueError(f"{path} must hold a table of options")
    # The required options may be given elsewhere.
    read = TrainConfig.from_dict({"data": "-", "out": "-", **content}, str(path))
    return {name: getattr(read, name) for name in content}


_OLD_DEFAULTS: Mapping[str, object] = {
    "base_batch": 0,
    "checkpoint_every": 0,
    "crop": 0,
    "crop_padding": -1,
    "cutout": 0,
    "dynamic": "none",
    "image_size": 0,
    "micro_batch": 0,
    "selection": "",
    "threads": 0,
    "weights": "",
}
"""What stood for "default" up to version 0.1, in files that still open."""


def current_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace old values that stood for "default" by None."""
    return {
        name: None if name in _OLD_DEFAULTS and value == _OLD_DEFAULTS[name] else value
        for name, value in values.items()
    }


def check(config: TrainConfig) -> None:
    """Check every option and the relations between them; the data is not looked at.

    Raises:
        InvalidValueError: For the first thing that is wrong.
    """
    from thresher.training.pruners import make_pruner

    kinds = (str, os.PathLike)
    check_type(config.data, kinds, "data", "a folder or name of a pack", instead_of(config.data))
    if config.selection is not None:
        fix = "save the selection and pass its path"
        check_type(config.selection, kinds, "selection", "a path", fix)
    options.validate(config)
    parse_batch_norm(for_batch(config.batch_norm, config.batch_size))
    make_pruner(config.dynamic)
    check_sinks(config.sinks)
    if config.validation is not None and config.validation > 1 and config.validation % 1:
        what = f"validation must be a count or a share below 1, got {config.validation:g}"
        raise InvalidValueError(what, "", "validation")
    if config.delay and config.average_every > 1:
        raise InvalidValueError("`delay` and `average_every` exclude each other", "use one of them")
    if config.average_every > 1 and (config.compress != "none" or config.allreduce != "default"):
        raise InvalidValueError(
            "with `average_every` no gradients are sent, so `compress` and `allreduce` have no "
            "effect",
            "leave them out",
        )
    check_compress(config.compress, config.allreduce, config.engine)
    if config.delay and config.precision == "fp16":
        raise InvalidValueError("`delay` does not work with precision fp16", "use bf16")
    if config.branch_from is not None and (config.dynamic is not None or config.record_dynamics):
        raise InvalidValueError(
            "`branch_from` does not work with `dynamic` or `record_dynamics`",
            "leave one of them out",
        )
    if config.drop_last and (config.batch_schedule is not None or config.branch_from is not None):
        raise InvalidValueError(
            "`drop_last` does not work with `batch_schedule` or `branch_from`: epochs would differ "
            "in size",
            "leave one of them out",
        )
    if config.max_batch is not None and config.batch_schedule != "noise":
        what = "`max_batch` has an effect only with `batch_schedule` noise"
        raise InvalidValueError(what, "leave one of them out")
    if config.max_batch is not None and config.max_batch < config.batch_size:
        what = f"max_batch must be at least batch_size {config.batch_size}, got {config.max_batch}"
        raise InvalidValueError(what, "", "max_batch")
    shared = for_batch(config.batch_norm, config.batch_size) != config.batch_norm
    if shared and (config.batch_schedule is not None or config.scaling == "weak"):
        raise InvalidValueError(
            f"`batch_norm` {config.batch_norm} does not work with `batch_schedule` or `scaling` "
            "weak, which change the batch",
            "give the size of its groups, such as ghost:32",
        )
    if config.batch_schedule is not None:
        for wrong, name in (
            (config.scaling == "weak", "`scaling` weak"),
            (config.budget == "steps", "`budget` steps"),
            (config.dynamic is not None, "`dynamic`"),
        ):
            if wrong:
                what = f"`batch_schedule` does not work with {name}"
                raise InvalidValueError(what, "leave one of them out")
    if config.batch_schedule == "noise" and (
        config.average_every > 1 or config.delay or config.engine == "horovod"
    ):
        raise InvalidValueError(
            "`batch_schedule` noise works only where DDP reduces the gradients",
            "leave it out, or `average_every`, `delay` and `engine`",
        )
    if config.engine == "horovod" and (
        config.average_every > 1 or config.delay or config.allreduce != "default"
    ):
        raise InvalidValueError(
            "`average_every`, `delay` and `allreduce` do not work with engine horovod",
            "leave them out",
        )
