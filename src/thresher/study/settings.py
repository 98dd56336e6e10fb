"""Training options inside a study: their names, their checks, and which change the result."""

import hashlib
import json
from typing import Any

from thresher import options
from thresher.errors import InvalidValueError, ThresherError
from thresher.study.tasks import Values
from thresher.training.config import TrainConfig, check

SET_BY_STUDY = ("out", "resume", "seed")
"""Training options that a study sets itself."""
IN_NAMES = frozenset({"workers", "micro_batch", "evaluate_every", "allreduce", "bucket_mb"})
"""Options that are part of a trial's name although a run may be resumed with another value: with
weak scaling, local batch statistics or a target they do change the result."""


def training_options() -> set[str]:
    """Return the names that [base], [grid] and [arms] may hold."""
    return {info.name for info in options.describe(TrainConfig)} - set(SET_BY_STUDY)


def check_option(name: str, value: Any, where: str) -> None:
    """Check the type and range of one training option; `where` is its table, for messages."""
    TrainConfig.from_dict({"data": "-", "out": "-", name: value}, where)


def check_training(settings: Values, where: str) -> None:
    """Check that the settings are a valid training configuration."""
    try:
        check(TrainConfig.from_dict({"out": "-", **settings}))
    except ThresherError as error:
        raise InvalidValueError(f"{where}: {error.what}", error.fix) from None


def identity(settings: Values) -> str:
    """Return six hex digits of everything in `settings` that changes the result.

    They are part of folder names, so they must not change between versions.
    """
    every = {info.name for info in options.describe(TrainConfig)}
    ignored = every - options.changes_result(TrainConfig) - IN_NAMES
    return digest({key: value for key, value in settings.items() if key not in ignored})


def digest(values: Values) -> str:
    """Return six hex digits of `values`."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:6]
