"""Measure one model on this machine: layers, step, all-reduce, overlap and input."""

import logging
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

import numpy as np

from thresher.distributed.group import join, placement
from thresher.environment import choose_device, hardware, versions
from thresher.errors import InvalidValueError
from thresher.models.registry import build, source_digest
from thresher.options import option, validate
from thresher.scaling.catalog import describe_device
from thresher.scaling.compute import gradients_ready
from thresher.scaling.pipeline import MEGA, Gradient, buckets
from thresher.scaling.profile import InputSpeed, Profile
from thresher.scaling.synthetic import SyntheticBatch
from thresher.training.augmentation import AugmentConfig, image_sides, make_augment

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.scaling.layers import Statistic

logger = logging.getLogger(__name__)
RANDOM_SIDE = 32
"""Side of the random images without a pack."""
READING_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Options of `measure`."""

    model: str
    """The network: a built-in name, timm:NAME, torchvision:NAME or package.module:function."""
    batch_size: int = option(64, ge=1)
    """The global batch B; layers are timed at B, B/2, B/4 … 1."""
    workers: int = option(1, ge=1)
    """Processes to start for the all-reduce and its overlap in a DDP step."""
    data: str | None = None
    """A pack: gives classes and image size, and its reading speed is measured."""
    classes: int = option(10, ge=1, only_with={"data": False})
    """Number of classes without a pack."""
    image_size: int | None = option(None, ge=1)
    """Side of the images: required for a pack of images that differ in size; without a pack, that
    of random images (32)."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of the layers."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure."""
    seconds_per_batch: float = option(1.0, gt=0, le=3600)
    """How long to repeat each batch size. Below 0.3, the DDP step and the reading of the pack are
    timed shorter, too."""


def measure(config: MeasureConfig, statistic: "Statistic" = median) -> Profile:
    """Measure a model on this machine.

    Under torchrun or srun the all-reduce and the DDP step are measured on their group instead, over
    its real links, and every rank must call this. `statistic` summarizes the repetitions; `min`
    suits a machine with other load.
    """
    validate(config)
    import torch

    from thresher.data.pack import Pack
    from thresher.scaling.captured import is_captured, time_captured, with_captured
    from thresher.scaling.layers import time_layers, trainable
    from thresher.scaling.links import STEP_SECONDS, measure_current_group, measure_group

    group = join(config.device) if placement().world > 1 else None
    shorter = min(1.0, config.seconds_per_batch / 0.3)
    workers = config.workers
    if group is not None:
        if workers not in (1, group.world):
            what = f"workers must be {group.world}, the size of this group, got {workers}"
            raise InvalidValueError(what, "omit it", "workers")
        workers = group.world
    if workers > config.batch_size:
        what = f"batch_size must be at least the number of workers ({workers})"
        raise InvalidValueError(f"{what}, got {config.batch_size}", "", "batch_size")
    device = choose_device(config.device) if group is None else group.device
    side, pack = config.image_size or RANDOM_SIDE, None
    classes, shape = config.classes, (3, side, side)
    if config.data is not None:
        pack = Pack.open(config.data)
        classes, shape = len(pack.classes), trained_shape(pack, config.image_size)
    torch.manual_seed(0)
    network = build(config.model, classes, shape[0], sides=shape[1:])
    parameters = trainable(network)
    batch = SyntheticBatch(shape, classes, config.batch_size)
    options = (config.precision, config.seconds_per_batch)
    layers, batches = time_layers(network, batch, device, *options, statistic=statistic)
    captured = {}
    if is_captured(config.precision, workers, device):
        captured = time_captured(network, batch, [times.batch for times in batches], *options)
    if captured:
        layers, batches = with_captured(layers, batches, captured, statistic)
    allreduce = overlap = None
    if workers > 1:
        if group is None or group.first:
            logger.info("timing all-reduces and a DDP step on %d workers", workers)
        step_seconds = STEP_SECONDS * shorter
        part = (config.model, replace(batch, batch_size=config.batch_size // workers))
        if group is None:
            times = measure_group(workers, *part, step_seconds)
        else:
            times = measure_current_group(str(device), *part, step_seconds)
        allreduce, overlap = times.allreduce, times.overlap
    return Profile(
        model=config.model,
        classes=classes,
        channels=shape[0],
        image_size=shape[1],
        batch_size=config.batch_size,
        precision=config.precision,
        device=describe_device(device.type),
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=math.prod(shape if pack is None else pack.image_shape or shape),
        layers=layers,
        batches=batches,
        allreduce=allreduce,
        overlap=overlap,
        input=None if pack is None else reading_speed(pack, shape[1], READING_SECONDS * shorter),
        versions=versions(),
        hardware=hardware(device.type),
        steps="captured" if captured else "ordinary",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        model_source=source_digest(config.model),
    )


def trained_shape(pack: "Pack", image_size: int | None) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a network is trained on by default.

    Raises:
        InvalidValueError: The images differ in size and `image_size` is None, or they do not, and
            it has no effect.
    """
    import torch

    config = AugmentConfig(image_size=image_size)
    augment = make_augment(config, pack, torch.float32)
    return len(pack.mean), *augment.output_size(*image_sides(config, pack))


def reading_speed(pack: "Pack", image_size: int, seconds: float = READING_SECONDS) -> InputSpeed:
    """Measure one reader that gathers random batches of a pack."""
    random = np.random.default_rng(0)
    batch = min(256, len(pack))
    begin, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begin < seconds:
        pack.images(random.choice(len(pack), batch, replace=False), size=image_size)
        count += batch
    rate = count / (time.perf_counter() - begin)
    shape = pack.image_shape or (image_size, image_size, 3)
    return InputSpeed(Path(pack.root).name, len(pack), rate, rate * float(np.prod(shape)))


def bucket_table(profile: Profile, bucket_mb: float = 25.0) -> list[Gradient]:
    """Return DDP's buckets for a model, at the largest batch of its profile."""
    largest = max(b.batch for b in profile.batches)
    seconds = [layer.backward_s[largest] for layer in reversed(profile.layers)]
    return buckets(gradients_ready(profile, seconds), bucket_mb * MEGA)
