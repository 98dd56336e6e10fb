"""Build what a run needs from its configuration: data on the device, network, optimiser, step."""

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from thresher.data.augment import Augment
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.distributed.group import Group
from thresher.models import batch_norm, registry
from thresher.training import optimizers
from thresher.training.config import TrainConfig
from thresher.training.epoch_table import EpochTable
from thresher.training.noise_scale import NoiseScale
from thresher.training.resolved import Resolved
from thresher.training.samples import Samples
from thresher.training.step import Step


@dataclass
class Parts:
    """What `assemble` made."""

    model: nn.Module
    step: Step
    table: EpochTable | None
    noise: NoiseScale | None


def build_model(config: TrainConfig, pack: Pack) -> nn.Module:
    """On the CPU; the same weights for the same seed, whatever was drawn before in this process."""
    channels = pack.image_shape[2] if pack.image_shape else 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        weights = config.weights or None
        return registry.build(config.model, len(pack.classes), channels, weights)


def make_augment(config: TrainConfig, pack: Pack) -> Augment:
    side = min(pack.image_shape[:2]) if pack.image_shape else config.image_size
    return Augment(
        mean=pack.mean.tolist(),
        std=pack.std.tolist(),
        crop_padding=side // 8 if config.crop_padding < 0 else config.crop_padding,
        crop=config.crop or None,
        flip=len(pack.mean) > 1 if config.flip is None else config.flip,
        cutout=config.cutout,
        dtype=torch.float64 if config.precision == "fp64" else torch.float32,
    )


def assemble(
    config: TrainConfig,
    resolved: Resolved,
    group: Group,
    pack: Pack,
    samples: Samples,
    model: nn.Module,
    per_sample: bool,
) -> Parts:
    """Put data and network on the device. Rows of the loader begin with the training samples."""
    positions = np.concatenate([samples.train, samples.validation, samples.test])
    loader = Loader(pack, positions, group.device, size=config.image_size or None)
    if config.precision == "fp64":
        model = model.double()
    # One worker that sees the whole batch at once has its statistics already.
    if config.batch_norm != "local" and not (config.batch_norm == "sync" and group.alone):
        model = batch_norm.convert(model, config.batch_norm)
    # Channels last is what cuDNN's and oneDNN's kernels want, and how images lie in a pack.
    model = model.to(device=group.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.train()
    optimizer = optimizers.make(
        config.optimizer,
        model,
        lr=resolved.peak_lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        decay_norm_bias=config.decay_norm_bias,
        betas=(config.momentum, 0.999),
    )
    table = EpochTable(len(samples.train), group) if per_sample else None
    noise = NoiseScale(group) if config.noise_scale else None
    augment = make_augment(config, pack)
    step = Step(config, group, loader, augment, model, optimizer, table, noise)
    return Parts(model, step, table, noise)


@contextlib.contextmanager
def torch_settings(config: TrainConfig, group: Group) -> Iterator[None]:
    """Threads and kernels as this run wants them; as they were when it is over."""
    threads = torch.get_num_threads()
    benchmark = torch.backends.cudnn.benchmark
    if config.threads:
        torch.set_num_threads(config.threads)
    elif group.local_world > 1 and group.device.type == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // group.local_world))
    torch.backends.cudnn.benchmark = group.device.type == "cuda"
    try:
        with warnings.catch_warnings():
            # Only newer torch knows what it recommends instead; the strides are those of weights
            # with one input channel, where the order means nothing.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark


def free_device_memory(config: TrainConfig) -> None:
    """Many runs in one process: graphs and their pools go with the run, once nothing of it is
    referred to."""
    if config.compile:
        compiler: Any = torch._dynamo
        compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
