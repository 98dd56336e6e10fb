"""Options with which the runs of a study were trained, for a run that is planned from them.

Samples to a target belong to an optimizer, a schedule and an augmentation as well as to a batch
size: a planned run with other ones would not need as many.
"""

import math
import shlex
from collections.abc import Mapping

from thresher.options import describe
from thresher.training.config import TrainConfig

PLANNED = frozenset(
    (
        *("data", "model", "batch_size", "epochs", "lr", "base_batch", "lr_rule", "warmup_epochs"),
        *("precision", "image_size", "validation", "target_accuracy", "target_loss", "seed"),
    )
)
"""What a plan decides itself."""
OTHER = frozenset(
    (
        *("budget", "scaling", "batch_schedule", "max_batch", "decoder", "deterministic"),
        *("branch_from", "record_dynamics", "noise_scale", "sharpness"),
    )
)
"""What counts epochs and batches in another way than a plan, or does not change the samples."""


def settings_at(batch: int, settings: Mapping[int, TrainConfig]) -> TrainConfig | None:
    """Return the configuration of the nearest batch size; None if there is none."""
    if not settings:
        return None
    return settings[min(settings, key=lambda known: abs(math.log(known / batch)))]


def flags(settings: TrainConfig) -> list[str]:
    """Return the words of `thresher train` that give a run these options, beside those of a plan.

    What the command does by default for this model is left out.
    """
    usual = TrainConfig.for_model(settings.model, data=settings.data, out=settings.out)
    words = []
    for info in describe(TrainConfig):
        value = getattr(settings, info.name)
        kept = info.changes_result and info.name not in PLANNED | OTHER
        if not kept or value is None or value == getattr(usual, info.name):
            continue
        if info.type is bool:  # one that may also be None takes a word
            words.append(info.flag if value else f"--no-{info.flag[2:]}")
        else:
            values = value if isinstance(value, tuple) else (value,)
            words.append(f"{info.flag} {shlex.quote(','.join(map(str, values)))}")
    return words
