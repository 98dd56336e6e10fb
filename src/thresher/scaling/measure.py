"""Measure one model on this machine: layers, step, all-reduce, overlap and input."""

import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from thresher.data.pack import Pack
from thresher.distributed.group import join, placement
from thresher.environment import choose_device
from thresher.errors import ThresherError
from thresher.models.registry import build
from thresher.progress import say
from thresher.scaling.costs import fit_ring
from thresher.scaling.layers import time_layers
from thresher.scaling.links import measure_group, measure_present
from thresher.scaling.pipeline import MEGA, Gradient, buckets
from thresher.scaling.profile import Profile


def measure(
    model: str,
    batch_size: int,
    workers: int = 1,
    data: str | None = None,
    classes: int = 10,
    image_size: int = 32,
    precision: str = "fp32",
    device: str = "auto",
    seconds_per_batch: float = 1.0,
    statistic: Callable[[Iterable[float]], float] = median,
) -> Profile:
    """Make a profile. `data` names a pack: its classes, channels and size are taken, and its
    reading speed is measured; without it images are random, `image_size` × `image_size` × 3.

    With `workers` > 1, as many processes are started here to time the all-reduce at sizes from
    1 KiB to 16 MiB and a real DDP step at `batch_size` (the global batch). Under torchrun or srun
    that is done on their group instead, over its real links, and every rank must call this.
    `statistic` sums up the repetitions: the median, or `min` on a machine that others disturb.
    """
    group = join(device) if placement().world > 1 else None
    if group is not None:
        if workers not in (1, group.world):
            raise ThresherError(
                f"--workers {workers}, but this group has {group.world}", "leave --workers out"
            )
        workers = group.world
    if batch_size < 1:
        raise ThresherError(f"a batch of {batch_size} holds nothing", "--batch-size 64")
    if workers > batch_size:
        raise ThresherError(
            f"a batch of {batch_size} cannot be split over {workers} workers",
            "every worker needs a sample",
        )
    where = choose_device(device) if group is None else group.device
    channels, pack = 3, None
    if data is not None:
        pack = Pack.open(data)
        classes = len(pack.classes)
        if pack.image_shape is not None:
            image_size, channels = pack.image_shape[0], pack.image_shape[2]
    torch.manual_seed(0)
    network = build(model, classes, channels)
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    shape = (channels, image_size, image_size)
    layers, batches = time_layers(
        network,
        shape,
        classes,
        batch_size,
        where,
        precision,
        seconds_per_batch,
        statistic=statistic,
    )
    allreduce = overlap = None
    if workers > 1:
        if group is None or group.first:
            say(f"timing all-reduces and a step on {workers} workers")
        task = {
            "model": model,
            "classes": classes,
            "shape": shape,
            "batch": batch_size // workers,
        }
        found = measure_present(task, str(where)) if group else measure_group(workers, task)
        allreduce, overlap = communication(found)
    return Profile(
        model=model,
        classes=classes,
        channels=channels,
        image_size=image_size,
        batch_size=batch_size,
        precision=precision,
        device=describe_device(where),
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=channels * image_size**2,
        layers=layers,
        batches=batches,
        allreduce=allreduce,
        overlap=overlap,
        input=reading_speed(pack, image_size) if pack is not None else None,
        versions={"torch": torch.__version__, "python": platform.python_version()},
        hardware={"machine": platform.machine(), "node": platform.node()},
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def communication(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The `allreduce` and `overlap` parts of a profile from what `measure_group` found."""
    fit = fit_ring([(size, seconds) for size, seconds in found["points"]], found["workers"])
    allreduce = {
        "workers": found["workers"],
        "backend": found["backend"],
        "points": [{"bytes": size, "seconds": seconds} for size, seconds in found["points"]],
        "latency_s": fit.latency_s,
        "seconds_per_byte": fit.seconds_per_byte,
        "error": fit.error,
    }
    return allreduce, found.get("overlap")


def describe_device(device: torch.device) -> dict[str, Any]:
    """Named as `local_cluster` names it, so that a profile is known to be of that device."""
    cores = os.cpu_count() or 1
    if device.type == "cuda":
        return {
            "kind": "cuda",
            "name": torch.cuda.get_device_name(0),
            "threads": 1,
            "cores": cores,
        }
    return {
        "kind": "cpu",
        "name": f"{platform.machine()} ×{cores}",
        "threads": torch.get_num_threads(),
        "cores": cores,
    }


def reading_speed(pack: Pack, size: int, batch: int = 256, seconds: float = 0.5) -> dict[str, Any]:
    """Images and bytes per second of one reader that gathers random batches of the pack."""
    random = np.random.default_rng(0)
    batch = min(batch, len(pack))
    begin, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begin < seconds:
        pack.images(random.choice(len(pack), batch, replace=False), size=size)
        count += batch
    rate = count / (time.perf_counter() - begin)
    shape = pack.image_shape or (size, size, 3)
    return {
        "pack": str(Path(pack.root).name),
        "samples": len(pack),
        "images_per_s": rate,
        "bytes_per_s": rate * float(np.prod(shape)),
    }


def bucket_table(profile: Profile, bucket_mb: float = 25.0) -> list[dict[str, float]]:
    """DDP's buckets for this model: bytes, and how far into the backward pass each is full."""
    at = max(b.batch for b in profile.batches)
    clock, gradients = 0.0, []
    for layer in reversed(profile.layers):
        clock += layer.backward_s[at]
        if layer.parameters:
            gradients.append(Gradient(layer.gradient_bytes, clock))
    return [
        {"bytes": bucket.size, "ready_s": bucket.ready_s}
        for bucket in buckets(gradients, bucket_mb * MEGA)
    ]
