"""A short training run that measures what no data sheet knows: the gradient's noise."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import RunPaths, home
from thresher.progress import say
from thresher.train.config import TrainConfig
from thresher.train.loop import train

SHARE_HELD_OUT = 0.15
"""Of the training samples, for the pilot's own accuracy: the test set is not touched."""


@dataclass(frozen=True)
class Pilot:
    """What the pilot found.

    `samples` is how many it saw until `target` on its validation samples; where it never got
    there, `reached` is False and the plan rests on an assumed number of epochs.
    """

    batch_size: int
    lr: float
    noise_scale: float
    images_per_s: float
    samples: int
    target: float
    reached: bool
    accuracy: float
    train_samples: int
    folder: str


def run_pilot(
    data: str,
    model: str,
    batch_size: int,
    lr: float,
    epochs: float,
    target: float | None,
    device: str = "auto",
    seed: int = 0,
) -> Pilot:
    """Train for a few epochs at a small batch and a constant rate; kept in the cache, so that a
    second plan of the same data and network asks nothing again. A killed pilot goes on."""
    pack = Pack.open(data)
    held_out = len(pack.indices("train")) * SHARE_HELD_OUT
    batch_size = max(4, min(batch_size, int(len(pack.indices("train")) - held_out) // 4))
    wanted = {
        "data": pack.fingerprint,
        "model": model,
        "batch_size": batch_size,
        "lr": lr,
        "epochs": epochs,
        "target": target,
        "seed": seed,
    }
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]
    out = home() / "pilots" / f"{pack.name}-{model.replace(':', '-').replace('/', '-')}-{key}"
    if not RunPaths(out).result.exists():
        say(f"pilot: {epochs:g} epochs of {model} on {pack.name} at batch {batch_size}")
    result = train(
        TrainConfig(
            data=data,
            out=str(out),
            model=model,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            schedule="constant",
            validation=SHARE_HELD_OUT,
            noise_scale=True,
            target_accuracy=target,
            seed=seed,
            device=device,  # type: ignore[arg-type]
            resume=True,
        ),
        quiet=True,
    )
    return _pilot(result, batch_size, lr, target, str(out))


def _pilot(
    result: dict[str, Any], batch_size: int, lr: float, target: float | None, out: str
) -> Pilot:
    if result["status"] == "diverged":
        raise ThresherError(
            f"the pilot diverged at rate {lr:g} and batch {batch_size}", "give a lower --lr"
        )
    if result["noise_scale"] is None:
        raise ThresherError(
            "the pilot was too short to measure the gradient's noise", "give more --pilot-epochs"
        )
    accuracy = result["validation_accuracy"]
    reached = target is None or result["status"] == "target"
    return Pilot(
        batch_size=batch_size,
        lr=lr,
        noise_scale=float(result["noise_scale"]),
        images_per_s=float(result["images_per_s"]),
        samples=int(result["samples"]),
        target=float(accuracy if target is None else target),
        reached=reached,
        accuracy=float(accuracy),
        train_samples=int(result["resolved"]["samples"]),
        folder=out,
    )
