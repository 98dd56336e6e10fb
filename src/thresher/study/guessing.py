"""What a run that diverged counts as: a network that guesses the class."""

import contextlib
import math
from collections.abc import Iterable

from thresher.errors import ThresherError
from thresher.study.reported import POINTS
from thresher.study.tasks import StudyTask, Values

LOSSES = ("loss", "train_loss")
"""Metrics of which a run that diverged has none; it counts as guessing."""


def guess(metrics: Iterable[str], classes: int | None) -> dict[str, float]:
    """Return these metrics of guessing; of an unknown number of classes, 0 points and no loss."""
    every = dict.fromkeys(POINTS, 1 / classes if classes else 0.0)
    every |= dict.fromkeys(LOSSES, math.log(classes)) if classes else {}
    return {key: every[key] for key in metrics if key in every}


def recorded(task: StudyTask) -> Values:
    """Return what a run recorded when it began; {} if it did not."""
    with contextlib.suppress(ThresherError):
        return task.recorded
    return {}


def recorded_data(task: StudyTask) -> Values:
    """Return what a run recorded about its data, such as the number of test images; {} if it did
    not."""
    data = recorded(task).get("data")
    return data if isinstance(data, dict) else {}
