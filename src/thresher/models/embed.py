"""Compute the penultimate features of a pack: evaluation mode, unaugmented, on any workers.

The work is cut into chunks of samples. A chunk is done when its marker exists, which is made after
its rows are on the disk; a second call does what is missing. Rows do not depend on the number of
workers: batches are cut within chunks.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from thresher.data.augment import Augment
from thresher.data.digest import file_sha256
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.distributed.group import Group, join
from thresher.environment import versions
from thresher.errors import ThresherError
from thresher.models import registry, weights
from thresher.models.features import (
    FORMAT,
    FeaturePaths,
    Features,
    features_and_logits,
)
from thresher.paths import RunPaths, atomic_file, disk_errors, read_json, write_json
from thresher.progress import bar, say

BATCHES_PER_CHUNK = 8


@dataclass(frozen=True)
class Network:
    """A network ready to be asked for features, and how its images are prepared."""

    model: nn.Module
    name: str
    mean: Sequence[float]
    std: Sequence[float]
    crop: int | None = None
    image_size: int | None = None
    knows_classes: bool = True
    """Whether its head was trained on the pack's classes: else there are no probabilities."""
    origin: dict[str, Any] = field(default_factory=dict)
    """`run` or `weights`, and the checksum of the file of weights."""

    @classmethod
    def from_run(cls, run: str | Path, pack: Pack) -> "Network":
        """The network that a training run left behind."""
        paths = RunPaths(Path(run))
        if not paths.root.is_dir():
            raise ThresherError(f"there is no run at {run}", "check the path")
        saved = read_json(paths.config, "run")
        config, data = saved.get("config", saved), saved.get("data", {})
        if not paths.model.exists():
            raise ThresherError(
                f"the run {run} has no model yet", "let it finish: `thresher train … --resume`"
            )
        if data.get("fingerprint") not in (None, pack.fingerprint) and "mean" not in data:
            say(f"{run} was trained on other data than {pack.name}: normalised by {pack.name}")
        return cls._loaded(
            config["model"],
            paths.model,
            pack,
            crop=config.get("crop") or None,
            image_size=config.get("image_size") or None,
            mean=data.get("mean") or pack.mean.tolist(),
            std=data.get("std") or pack.std.tolist(),
            origin={"run": str(run)},
        )

    @classmethod
    def from_weights(
        cls,
        name: str,
        file: str | Path,
        pack: Pack,
        crop: int | None = None,
        image_size: int | None = None,
    ) -> "Network":
        """A model by name with pretrained weights from a file."""
        return cls._loaded(
            name,
            Path(file),
            pack,
            crop=crop,
            image_size=image_size,
            mean=pack.mean.tolist(),
            std=pack.std.tolist(),
            origin={"weights": str(file)},
        )

    @classmethod
    def _loaded(
        cls, name: str, file: Path, pack: Pack, origin: dict[str, Any], **images: Any
    ) -> "Network":
        channels = pack.image_shape[2] if pack.image_shape else 3
        model = registry.build(name, len(pack.classes), channels)
        left = weights.load_into(model, file, name)
        origin = {**origin, "sha256": file_sha256(file)}
        return cls(model, name, knows_classes=not left, origin=origin, **images)


@dataclass(frozen=True)
class EmbedOptions:
    split: str = "train"
    """Which samples: a split of the pack, or `all`."""
    dtype: str = "float16"
    """float16 or float32."""
    batch_size: int = 512
    """Samples at once on a worker's device."""
    device: str = "auto"


def embed(
    network: Network, pack: Pack, out: str | Path, options: EmbedOptions | None = None
) -> Features:
    """Write the features of `pack` to the folder `out`, going on where a killed call stopped.

    Every process of a torchrun group calls it and gets the result.
    """
    options = options or EmbedOptions()
    if options.dtype not in ("float16", "float32"):
        raise ThresherError(f'features cannot be "{options.dtype}"', "use float16 or float32")
    if options.batch_size < 1:
        raise ThresherError(f"a batch of {options.batch_size} holds nothing", "give 1 or more")
    paths = FeaturePaths(Path(out))
    group = join(options.device)
    if group.on_first(paths.root.exists):
        raise ThresherError(f"{paths.root} exists already", "choose another name or remove it")
    everything = np.arange(len(pack))
    positions = everything if options.split == "all" else pack.indices(options.split)
    model = network.model.to(group.device).eval()
    loader = Loader(pack, positions, group.device, resident=False, size=network.image_size)
    augment = Augment(network.mean, network.std, crop=network.crop)
    begun = time.monotonic()
    with disk_errors(paths.root), _locked(paths, group):
        plan = _plan(network, pack, options, len(positions))
        shape = _output_shape(model, augment, loader)
        group.on_first(lambda: _stage(paths.staging, plan, len(positions), shape))
        chunks = _missing(paths.staging, len(positions), plan, group)
        work = _Work(model, augment, loader, paths.staging, plan)
        _together(group, lambda: work.do(chunks, group), paths.staging)
        seconds = time.monotonic() - begun
        group.on_first(lambda: _finish(paths, pack, positions, plan, seconds, group.world))
    return Features.open(paths.root)


def _plan(network: Network, pack: Pack, options: EmbedOptions, n: int) -> dict[str, Any]:
    """What fixes every byte of the result; a half-done folder is gone on with if it agrees."""
    return {
        "format": FORMAT,
        "pack": pack.name,
        "fingerprint": pack.fingerprint,
        "split": options.split,
        "samples": n,
        "model": network.name,
        **network.origin,
        "mean": list(network.mean),
        "std": list(network.std),
        "crop": network.crop,
        "image_size": network.image_size,
        "probabilities": network.knows_classes,
        "dtype": options.dtype,
        "batch_size": options.batch_size,
    }


@torch.inference_mode()
def _output_shape(model: nn.Module, augment: Augment, loader: Loader) -> tuple[int, int]:
    """Features and classes of the model, from one image."""
    if not len(loader):
        raise ThresherError(f"{loader.pack.name} has no samples in this split", "choose another")
    batch = loader.batch(loader.positions[:1])
    features, logits = features_and_logits(model, augment.evaluate(batch.images))
    return features.shape[1], logits.shape[1]


def _stage(staging: FeaturePaths, plan: dict[str, Any], n: int, shape: tuple[int, int]) -> None:
    """Make the files at their full size, unless a killed call of the same plan left them."""
    plan_file = staging.root / "plan.json"
    if plan_file.exists() and read_json(plan_file) == plan:
        return
    for old in staging.root.iterdir():
        if old.name != ".lock":
            old.unlink()
    files = [(staging.array, plan["dtype"], shape[0])]
    if plan["probabilities"]:
        files.append((staging.probabilities, "float32", shape[1]))
    for file, dtype, width in files:
        np.lib.format.open_memmap(file, "w+", np.dtype(dtype), (n, width)).flush()
    write_json(plan_file, plan)


def _missing(staging: FeaturePaths, n: int, plan: dict[str, Any], group: Group) -> list[int]:
    """First rows of the chunks that this worker is to do."""
    begins = range(0, n, plan["batch_size"] * BATCHES_PER_CHUNK)
    todo = group.on_first(lambda: [b for b in begins if not _marker(staging, b).exists()])
    return todo[group.rank :: group.world]


def _together(group: Group, work: Callable[[], None], staging: FeaturePaths) -> None:
    """Do `work` on every worker; what one of them refuses, all refuse, and nothing is left."""
    trouble: tuple[str, str] | None = None
    try:
        work()
    except ThresherError as error:
        trouble = (error.what, error.fix)
    for met in group.gather(trouble):
        if met is not None:
            group.on_first(lambda: shutil.rmtree(staging.root, ignore_errors=True))
            raise ThresherError(*met)


@dataclass(frozen=True)
class _Work:
    """What a worker computes chunks with."""

    model: nn.Module
    augment: Augment
    loader: Loader
    staging: FeaturePaths
    plan: dict[str, Any]

    @torch.inference_mode()
    def do(self, chunks: list[int], group: Group) -> None:
        """Compute the chunks that begin at these rows; mark each once it is on the disk."""
        spans = [(begin, *span) for begin in chunks for span in self._spans(begin)]
        array = np.load(self.staging.array, mmap_mode="r+")
        classes = None
        if self.plan["probabilities"]:
            classes = np.load(self.staging.probabilities, mmap_mode="r+")
        label = "embedding" if group.alone else f"embedding (worker 1 of {group.world})"
        with bar(label, sum(end - first for _, first, end in spans), "samples") as shown:
            order = (self.loader.positions[first:end] for _, first, end in spans)
            for (begin, first, end), batch in zip(spans, self.loader.batches(order), strict=True):
                images = self.augment.evaluate(batch.images)
                features, logits = features_and_logits(self.model, images)
                array[first:end] = _finite(features, array.dtype, self.plan)
                if classes is not None:
                    classes[first:end] = logits.float().softmax(1).cpu().numpy()
                if end == self._spans(begin)[-1][1]:
                    array.flush()
                    if classes is not None:
                        classes.flush()
                    _marker(self.staging, begin).touch()
                if group.first:
                    shown.advance(end - first)

    def _spans(self, begin: int) -> list[tuple[int, int]]:
        """The batches of the chunk that begins at this row, as first and last row."""
        size = self.plan["batch_size"]
        last = min(begin + size * BATCHES_PER_CHUNK, len(self.loader))
        return [(first, min(first + size, last)) for first in range(begin, last, size)]


def _finite(features: torch.Tensor, dtype: np.dtype[Any], plan: dict[str, Any]) -> np.ndarray:
    exact = features.float().cpu().numpy()
    if not np.isfinite(exact).all():
        raise ThresherError(
            f"the features of {plan.get('run') or plan['model']} are not finite numbers",
            "the run diverged, or its weights are damaged: choose another",
        )
    with np.errstate(over="ignore"):
        stored = exact.astype(dtype)
    if not np.isfinite(stored).all():
        raise ThresherError("some features are too large for float16", "use --dtype float32")
    return stored


def _finish(
    paths: FeaturePaths,
    pack: Pack,
    positions: np.ndarray,
    plan: dict[str, Any],
    seconds: float,
    workers: int,
) -> None:
    """Write the index and the sidecar, clear the markers, and rename the folder into place."""
    staging = paths.staging
    index = pa.table(
        {"id": pack.ids.take(pa.array(positions)), "label": pa.array(pack.labels[positions])}
    )
    with atomic_file(staging.index) as temporary:
        pq.write_table(index, temporary)
    width = np.load(staging.array, mmap_mode="r").shape[1]
    meta = {
        **plan,
        "dimension": width,
        "workers": workers,
        "seconds": round(seconds, 3),
        "versions": versions(),
    }
    write_json(staging.meta, meta)
    for leftover in [*staging.root.glob("*.done"), staging.root / "plan.json"]:
        leftover.unlink()
    os.rename(staging.root, paths.root)
    (paths.root / ".lock").unlink(missing_ok=True)


def _marker(staging: FeaturePaths, begin: int) -> Path:
    return staging.root / f"{begin}.done"


@contextmanager
def _locked(paths: FeaturePaths, group: Group) -> Iterator[None]:
    """One embedding at a time into a folder; the system frees the lock at a kill."""
    held: list[int] = []

    def lock() -> None:
        paths.staging.root.mkdir(parents=True, exist_ok=True)
        held.append(os.open(paths.staging.root / ".lock", os.O_RDWR | os.O_CREAT, 0o644))
        try:
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ThresherError(
                f"another process is writing to {paths.root}", "wait for it"
            ) from None

    try:
        group.on_first(lock)
        yield
    finally:
        for handle in held:
            os.close(handle)
