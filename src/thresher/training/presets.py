"""Settings that belong to a network: used where a command or a study says nothing else."""

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    "fast-cifar": {
        "epochs": 10.0,
        "batch_size": 1000,
        "optimizer": "muon",
        "lr": 0.17,
        "bias_lr": 800.0,
        "head_lr": 13.0,
        "momentum": 0.6,
        "weight_decay": 0.0024,
        "decay_norm_bias": False,
        "schedule": "poly",
        "poly_power": 1.0,
        "label_smoothing": 0.2,
        "crop_padding": 2,
        "padding_mode": "reflect",
        "flip_mode": "alternate",
        "views": "shift",
        "precision": "bf16",
        "evaluate_every": 0,
    },
}
"""Options of `TrainConfig` by the name of the model."""


def preset(model: str | None) -> dict[str, Any]:
    """Return the settings that belong to a model; none for most."""
    return dict(PRESETS.get(model or "", {}))
