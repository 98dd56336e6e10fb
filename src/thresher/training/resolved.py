"""Every number that follows from a configuration and the size of the data."""

from dataclasses import asdict, dataclass, field, replace
from math import ceil

from thresher.errors import InvalidValueError
from thresher.models.batch_norm_mode import alignment, for_batch
from thresher.training.batch_growth import largest_batch
from thresher.training.batch_schedule import NOISE, Phases, batch_at, batch_phases
from thresher.training.batches import BatchConfig, largest_part, piece_count, slices
from thresher.training.config import TrainConfig, check
from thresher.training.schedules import RateConfig, Schedule, rate_of


@dataclass(frozen=True)
class Resolved:
    """Batches, steps and rates of a run; shown before it and saved with it."""

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
    """Samples in one epoch of the schedule; a pass may have fewer."""
    dropped: int | None = None
    """Samples that each epoch leaves out, with `drop_last`."""
    augment: str = "cifar"
    """imagenet, cifar or none."""
    image_size: int | None = None
    """Side of the images that the network is trained on."""
    decoder: str | None = None
    """What decodes the images; None if they are stored as pixels."""
    slow_decoded: int | None = None
    """Images that `decoder` cannot read, so that Pillow decoded them; known at the end."""
    precision: str | None = None
    """Arithmetic of forward and backward pass."""
    batch_phases: list[list[int]] = field(default_factory=list)
    """[first epoch, global batch] if the batch changes; `global_batch` is then the first."""
    largest_batch: int | None = None
    """The bound of a batch that grows with the noise scale. Steps are then counted at the first
    batch, and `batch_phases` is known at the end."""

    @property
    def used(self) -> int:
        """Samples that an epoch trains on, without a pruner."""
        return self.samples - (self.dropped or 0)

    @property
    def batches(self) -> list[int]:
        """The global batches of the run in order, or those that it may grow to."""
        if self.largest_batch is not None:
            doublings = (self.largest_batch // self.global_batch).bit_length()
            return [self.global_batch << n for n in range(doublings)]
        return [batch for _, batch in self.batch_phases] or [self.global_batch]

    def batch_at(self, epoch: int) -> int:
        """Return the global batch of an epoch."""
        return batch_at(self.batch_phases or [[0, self.global_batch]], epoch)

    def table(self) -> str:
        """Return one line per number."""
        width = max(map(len, asdict(self)))
        return "\n".join(
            f"  {name.replace('_', ' ').ljust(width)}  "
            + (f"{value:,.6g}" if isinstance(value, float) else _text(value))
            for name, value in asdict(self).items()
            if value is not None and name != "batch_phases"
        ) + "".join(f"\n  from epoch {e:,}: batch {b:,}" for e, b in self.batch_phases)

    def batch_counts(self) -> dict[int, int]:
        """Return how many batches of each size an epoch has, at most."""
        counts: dict[int, int] = {}
        for batch in self.batches:
            whole, rest = divmod(self.samples, batch)
            counts[batch] = max(whole, counts.get(batch, 0))
            if rest and self.dropped is None:
                counts.setdefault(rest, 1)
        return counts

    def with_micro_batch(self, micro: int | None, align: int) -> "Resolved":
        """Return the numbers with at most `micro` samples (None: no limit) at once."""
        pieces = piece_count(self.global_batch, self.workers, micro, align)
        cuts = slices(self.per_worker_batch, pieces, align)
        return replace(self, accumulation=pieces, micro_batch=max(e - b for b, e in cuts))


def _text(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def resolve(
    config: TrainConfig, samples: int, full_samples: int | None = None, workers: int | None = None
) -> Resolved:
    """Derive the numbers of a run on `samples` of `full_samples` training samples.

    torchrun decides about `workers`; by default `config.workers`. Raises InvalidValueError if the
    batch cannot be cut as the configuration asks.
    """
    check(config)
    world = config.workers if workers is None else workers
    full = samples if full_samples is None else full_samples
    batch = config.batch_size * (world if config.scaling == "weak" else 1)
    align = alignment(for_batch(config.batch_norm, config.batch_size))
    micro = None if config.micro_batch == "auto" else config.micro_batch
    phases = batch_phases(config, batch)
    for _, size in phases:
        _check_cuts(size, samples, world, align)
    largest = None
    if config.batch_schedule == NOISE:
        largest = largest_batch(batch, config.max_batch, samples)
    if micro is not None and micro < align:
        what = f"micro_batch must be at least {align} with batch norm {config.batch_norm}"
        raise InvalidValueError(f"{what}, got {micro}", "", "micro_batch")
    # What an epoch trains on, and what one of the full run would.
    used, full_used = (used_samples(n, batch, config.drop_last) for n in (samples, full))
    steps, total = _budget(config, used, full_used, phases)
    rate = rate_of(config, batch)
    epoch = _schedule_epoch(config, used, full_used, total)
    warmup_samples = rate.warmup_epochs * epoch
    part = largest_part(batch, world, align)
    return Resolved(
        samples=samples,
        full_samples=full,
        workers=world,
        global_batch=batch,
        per_worker_batch=part,
        micro_batch=part,
        accumulation=1,
        base_batch=batch if config.base_batch is None else config.base_batch,
        peak_lr=rate.peak_lr,
        warmup_epochs=rate.warmup_epochs,
        warmup_steps=min(steps, _steps(ceil(warmup_samples), used, phases)),
        warmup_samples=warmup_samples,
        steps_per_epoch=ceil(used / batch),
        last_batch=used - (ceil(used / batch) - 1) * batch,
        total_steps=steps,
        total_samples=total,
        passes=total / samples,
        samples_per_epoch=epoch,
        dropped=samples - used if config.drop_last else None,
        batch_phases=[list(phase) for phase in phases] if len(phases) > 1 else [],
        largest_batch=largest,
    ).with_micro_batch(micro, align)


def _check_cuts(batch: int, samples: int, world: int, align: int) -> None:
    if batch > samples:
        raise InvalidValueError(
            f"the batch of {batch:,} is larger than the {samples:,} training samples",
            "choose a smaller `batch_size`",
        )
    if world > batch:
        raise InvalidValueError(
            f"{world} workers cannot share a batch of {batch} samples", "use at most one per sample"
        )
    if world > ceil(batch / align):
        raise InvalidValueError(
            f"{world} workers cannot share the {ceil(batch / align)} groups of {align} samples in "
            f"a batch of {batch}",
            "use fewer workers or smaller groups",
        )


def used_samples(samples: int, batch: int, drop_last: bool) -> int:
    """Return the samples that are trained on: all, or whole batches; fewer than one are kept."""
    return samples - samples % batch if drop_last and samples > batch else samples


def _budget(config: BatchConfig, samples: int, full: int, phases: Phases) -> tuple[int, int]:
    """Return steps and samples of the run; no batch spans two epochs, the last one is cut."""
    batch = phases[0][1]
    per_epoch = ceil(samples / batch)
    total = round(config.epochs * (samples if config.budget == "epochs" else full))
    whole_batches = config.drop_last and config.budget != "steps"
    if whole_batches:
        total -= total % batch
    if total < 1:
        least = "batch" if whole_batches else "sample"
        raise InvalidValueError(f"{config.epochs} epochs are less than one {least}", "", "epochs")
    if config.budget == "steps":
        whole, rest = divmod(total, full)
        steps = whole * ceil(full / batch) + ceil(rest / batch)
        whole, rest = divmod(steps, per_epoch)
        return steps, whole * samples + min(rest * batch, samples)
    return _steps(total, samples, phases), total


def _schedule_epoch(config: BatchConfig, samples: int, full: int, total: int) -> float:
    """Return the samples of an epoch of the schedule; not by `total`, which is rounded."""
    if config.budget == "epochs" or samples == full:
        return float(samples)
    return float(full) if config.budget == "samples" else total / config.epochs


def _steps(total: int, samples: int, phases: Phases) -> int:
    """Return the steps on the first `total` samples of a run on epochs of `samples`."""
    whole, rest = divmod(total, samples)
    ends = [*(min(epoch, whole) for epoch, _ in phases[1:]), whole]
    steps = sum(
        max(0, end - begin) * ceil(samples / size)
        for (begin, size), end in zip(phases, ends, strict=True)
    )
    return steps + ceil(rest / batch_at(phases, whole))


def schedule(config: RateConfig, resolved: Resolved) -> Schedule:
    """Return the schedule of the rate over the samples seen.

    Its epochs are those of the budget: a filtered run with the samples of the full run lowers its
    rate at the same sample as the full run.
    """
    return Schedule(
        config.schedule,
        total=resolved.total_samples,
        warmup=resolved.warmup_samples,
        milestones=tuple(e * resolved.samples_per_epoch for e in config.step_epochs),
        power=config.poly_power,
    )


def tiny_rest(resolved: Resolved, batch: int) -> int:
    """Return the samples of the last batch of a whole epoch if they are too few, else 0."""
    rest = resolved.samples % batch if resolved.dropped is None else 0
    return rest if 32 * rest < batch else 0
