"""Every number that follows from a configuration and the size of the data. Pure; no torch."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from thresher.errors import ThresherError
from thresher.training import rules
from thresher.training.config import TrainConfig, check, ghost_size
from thresher.training.parts import bounds, largest_part, piece_count
from thresher.training.schedules import Schedule


@dataclass(frozen=True)
class Resolved:
    """The plan of a run; printed before it and saved with it."""

    samples: int
    """Training samples after selection and hold-out."""
    full_samples: int
    """Training samples before selection."""
    workers: int
    global_batch: int
    per_worker_batch: int
    """The largest worker's part of a full batch."""
    micro_batch: int
    """Most samples on a device at once."""
    accumulation: int
    """Pieces that a worker's part of a full batch is cut into."""
    base_batch: int
    peak_lr: float
    warmup_epochs: float
    warmup_steps: int
    warmup_samples: float
    steps_per_epoch: int
    last_batch: int
    """Samples in an epoch's last batch."""
    total_steps: int
    total_samples: int
    passes: float
    """How often each sample is seen: `epochs`, or more under the budget of a full run."""
    samples_per_epoch: float
    """Samples in one epoch of the schedule (`passes` may run over fewer)."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def resolve(
    config: TrainConfig, samples: int, full_samples: int | None = None, workers: int | None = None
) -> Resolved:
    """Derive everything from `config` for `samples` kept out of `full_samples` training samples.

    `workers`: how many there really are (torchrun decides), else what the configuration asks for.
    """
    check(config)
    world = config.workers if workers is None else workers
    full = samples if full_samples is None else full_samples
    batch = config.batch_size * (world if config.scaling == "weak" else 1)
    group = ghost_size(config.batch_norm)
    if batch > samples:
        raise ThresherError(
            f"the batch of {batch:,} is larger than the {samples:,} training samples",
            "choose a smaller --batch-size",
        )
    if world > batch:
        raise ThresherError(
            f"{world} workers cannot share a batch of {batch} samples", "use at most one per sample"
        )
    if group is not None and world > ceil(batch / group):
        raise ThresherError(
            f"{world} workers cannot share the {ceil(batch / group)} groups of {group} samples in "
            f"a batch of {batch}",
            "use fewer workers or smaller groups",
        )
    micro = 0 if config.micro_batch == "auto" else config.micro_batch
    if group is not None and micro and micro < group:
        raise ThresherError(
            f"--micro-batch {micro} is smaller than the groups of --batch-norm {config.batch_norm}",
            "a piece holds whole groups",
        )
    steps, total = _budget(config, samples, full, batch)
    base = config.base_batch or batch
    rate = rules.apply(config.lr_rule, config.lr, batch, base, config.warmup_epochs)
    epoch = total / config.epochs
    warmup_samples = rate.warmup_epochs * epoch
    pieces = piece_count(batch, world, micro, group)
    part = largest_part(batch, world, group)
    return Resolved(
        samples=samples,
        full_samples=full,
        workers=world,
        global_batch=batch,
        per_worker_batch=part,
        micro_batch=max(end - begin for begin, end in bounds(part, pieces, group)),
        accumulation=pieces,
        base_batch=base,
        peak_lr=rate.peak_lr,
        warmup_epochs=rate.warmup_epochs,
        warmup_steps=min(steps, ceil(warmup_samples / batch)),
        warmup_samples=warmup_samples,
        steps_per_epoch=ceil(samples / batch),
        last_batch=samples - (ceil(samples / batch) - 1) * batch,
        total_steps=steps,
        total_samples=total,
        passes=total / samples,
        samples_per_epoch=epoch,
    )


def with_micro_batch(resolved: Resolved, micro: int, group: int | None) -> Resolved:
    """Return the plan with at most `micro` samples (0: no limit) on a device at once."""
    pieces = piece_count(resolved.global_batch, resolved.workers, micro, group)
    cuts = bounds(resolved.per_worker_batch, pieces, group)
    return replace(resolved, accumulation=pieces, micro_batch=max(e - b for b, e in cuts))


def _budget(config: TrainConfig, samples: int, full: int, batch: int) -> tuple[int, int]:
    """(steps, samples) of the whole run. A batch never spans two epochs; the last one is cut."""
    per_epoch = ceil(samples / batch)
    if config.budget == "steps":
        whole, rest = divmod(round(config.epochs * full), full)
        steps = whole * ceil(full / batch) + ceil(rest / batch)
        whole, rest = divmod(steps, per_epoch)
        return steps, whole * samples + min(rest * batch, samples)
    total = round(config.epochs * (full if config.budget == "samples" else samples))
    if total < 1:
        raise ThresherError(f"{config.epochs} epochs hold not one sample", "ask for more")
    whole, rest = divmod(total, samples)
    return whole * per_epoch + ceil(rest / batch), total


def schedule(config: TrainConfig, resolved: Resolved) -> Schedule:
    """The rate's course over the samples seen. Its epochs are those of the budget: a filtered run
    with the full run's samples lowers its rate at the same sample as the full run does."""
    return Schedule(
        config.schedule,
        total=resolved.total_samples,
        warmup=resolved.warmup_samples,
        milestones=tuple(e * resolved.samples_per_epoch for e in config.step_epochs),
        power=config.poly_power,
    )


def tiny_last_batch(resolved: Resolved) -> int:
    """Samples in an epoch's last batch where they are so few that their step, at the full rate,
    may undo an epoch's work (seen: 1 of 718 took digits from 81 to 16 %); 0 where it is fine."""
    rest = resolved.samples % resolved.global_batch
    return rest if 0 < 32 * rest < resolved.global_batch else 0
