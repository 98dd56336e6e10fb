"""Two short training runs that measure what no data sheet knows: how large a batch still pays.

One at a small batch and one at eight times it. Two independent estimates of the critical batch:
the gradient noise scale of the larger run (its two halves against the whole), and the samples that
both runs needed to the same accuracy, by E(B) = E_min(1 + B/B_crit). Either alone can be off by a
factor of several after so few steps; their geometric mean is taken, and both are shown.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.paths import RunPaths, home
from thresher.progress import say
from thresher.scaling.plan import rate_at
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult
from thresher.training.train import train

SHARE_HELD_OUT = 0.15
"""Of the training samples, for the pilot's own accuracy: the test set is not touched."""
APART = 8
"""How many times larger the second batch is."""
RATE_CRITICAL = 256.0
"""A first guess of the critical batch, for the second run's rate; its error enters as a root."""


@dataclass(frozen=True)
class Pilot:
    """What the pilots found.

    `samples` is how many the small batch saw until `target` on its validation samples; where it
    never got there, `reached` is False and the plan rests on an assumed number of epochs.
    """

    batch_size: int
    large_batch: int
    lr: float
    critical_batch: float
    noise_scale: float | None
    critical_by_samples: float | None
    images_per_s: float
    samples: int
    target: float
    reached: bool
    accuracy: float
    train_samples: int
    folders: tuple[str, str]


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
    """Train twice for a few epochs at constant rates; kept in the cache, so that a second plan of
    the same data and network asks nothing again. A killed pilot goes on where it was."""
    pack = Pack.open(data)
    count = int(len(pack.indices("train")) * (1 - SHARE_HELD_OUT))
    small = max(4, min(batch_size, count // (4 * APART)))
    large = APART * small
    if large > count:
        raise ThresherError(
            f"{count} training samples are too few to plan with", f"it takes {APART * 4} at least"
        )
    large_lr = rate_at(large, RATE_CRITICAL, small, lr)
    runs = [
        _run(pack, data, model, batch, rate, epochs, target, device, seed)
        for batch, rate in ((small, lr), (large, large_lr))
    ]
    return _combine(runs, small, large, lr, target)


def _run(
    pack: Pack,
    data: str,
    model: str,
    batch: int,
    lr: float,
    epochs: float,
    target: float | None,
    device: str,
    seed: int,
) -> tuple[RunResult, Path]:
    config = TrainConfig(
        data=data,
        out="",
        model=model,
        epochs=epochs,
        batch_size=batch,
        lr=lr,
        schedule="constant",
        validation=SHARE_HELD_OUT,
        noise_scale=True,
        target_accuracy=target,
        seed=seed,
        device=device,  # type: ignore[arg-type]
        resume=True,
    )
    # By all that the run depends on: a pilot of a version with other defaults is another pilot.
    wanted = {**config.to_dict(), "data": pack.fingerprint}
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:16]
    name = f"{pack.name}-{model.replace(':', '-').replace('/', '-')}-{batch}-{key}"
    out = home() / "pilots" / name
    if not RunPaths(out).result.exists():
        say(f"pilot: at most {epochs:g} epochs of {model} on {pack.name} at batch {batch}")
    result = train(replace(config, out=str(out)), quiet=True)
    if result.status == "diverged":
        raise ThresherError(
            f"the pilot diverged at rate {lr:g} and batch {batch}", "give a lower --lr"
        )
    return result, out


def _combine(
    runs: list[tuple[RunResult, Path]], small: int, large: int, lr: float, target: float | None
) -> Pilot:
    (first, first_out), (second, second_out) = runs
    noise = second.noise_scale or first.noise_scale
    by_samples = critical_from(
        _course(first_out), _course(second_out), small, large, first.resolved.samples
    )
    estimates = [value for value in (noise, by_samples) if value is not None]
    if not estimates:
        raise ThresherError(
            "the pilot was too short to tell how large a batch pays", "give more --pilot-epochs"
        )
    accuracy = float(first.validation_accuracy or 0.0)
    return Pilot(
        batch_size=small,
        large_batch=large,
        lr=lr,
        critical_batch=math.exp(sum(map(math.log, estimates)) / len(estimates)),
        noise_scale=noise,
        critical_by_samples=by_samples,
        images_per_s=float(first.images_per_s or 0.0),
        samples=first.samples,
        target=accuracy if target is None else target,
        reached=target is None or first.status == "target",
        accuracy=accuracy,
        train_samples=first.resolved.samples,
        folders=(str(first_out), str(second_out)),
    )


def _course(out: Path) -> list[tuple[float, float]]:
    """(samples, validation accuracy) after each epoch of a run."""
    lines = RunPaths(out).metrics.read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    return [
        (float(item["samples"]), float(item["accuracy"]))
        for item in found
        if item["kind"] == "epoch" and item.get("accuracy") is not None
    ]


def samples_until(course: list[tuple[float, float]], accuracy: float) -> float | None:
    """Samples at which a run first reached `accuracy`, straight between its evaluations."""
    before = (0.0, 0.0)
    for samples, reached in course:
        if reached >= accuracy:
            rise = reached - before[1]
            part = (accuracy - before[1]) / rise if rise > 0 else 1.0
            return before[0] + part * (samples - before[0])
        before = (samples, reached) if reached > before[1] else (samples, before[1])
    return None


def critical_from(
    one: list[tuple[float, float]],
    other: list[tuple[float, float]],
    small: int,
    large: int,
    train_samples: int,
) -> float | None:
    """B_crit from the samples that two batches needed to the same accuracy: the highest that both
    reached, after half an epoch at least. None where the larger batch needed no more."""
    if not one or not other:
        return None
    common = min(max(a for _, a in one), max(a for _, a in other))
    e_small, e_large = samples_until(one, common), samples_until(other, common)
    if e_small is None or e_large is None or e_large < train_samples / 2:
        return None
    ratio = e_large / e_small
    if ratio <= 1:
        return None
    if ratio >= large / small:
        # Samples in proportion to the batch: every batch tried is beyond the critical one.
        return 1.0
    return max(1.0, (large - ratio * small) / (ratio - 1))
