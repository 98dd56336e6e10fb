"""Compute the penultimate features of a pack, in evaluation mode and without augmentation.

The work is divided into chunks of samples. A chunk is done when its marker exists, which is
created after its rows are on disk; a second call computes the missing chunks. Rows do not depend
on the number of workers, because batches do not cross chunks.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

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
from thresher.errors import AlreadyExistsError, InvalidValueError, ThresherError
from thresher.locks import exclusive_lock
from thresher.models.embed_chunks import ChunkWork
from thresher.models.embed_config import EmbedConfig, EmbedOptions
from thresher.models.features import (
    FORMAT,
    FeaturePaths,
    Features,
    FeaturesMeta,
    features_and_logits,
)
from thresher.models.network import Network, Preprocessing, weights_of_run
from thresher.options import validate
from thresher.paths import atomic_file, disk_errors, read_json, write_json


def embed_pack(config: EmbedConfig, pack: Pack, out: str | Path) -> Features:
    """Load the network that `config` names and write its features of `pack` to `out`.

    Every process of a torchrun group calls this, and each gets the result.
    """
    config.check()
    if config.run is not None:
        network = Network.from_run(config.run, pack)
    else:
        assert config.model is not None
        assert config.weights is not None
        network = Network.from_weights(
            config.model, config.weights, pack, config.crop, config.image_size
        )
    return embed(network, pack, out, config)


def features_of_run(run: str | Path, pack: Pack, options: EmbedOptions | None = None) -> Features:
    """Return the features of a pack by a run's network, stored in the run's folder.

    Stored features are reused if the checksum of the weights and the preprocessing are still the
    same. Otherwise new features are computed, and the old ones stay. An interrupted call resumes.

    Args:
        run: Folder of a finished training run.
        pack: The pack to embed.
        options: Used if features have to be computed; `split` always applies.
    """
    options = options or EmbedOptions()
    key = (Preprocessing.of_run(run, pack), file_sha256(weights_of_run(run)))
    split = "" if options.split == "train" else f"-{options.split}"
    folder = Path(run) / f"features{split}-{pack.fingerprint[:12]}"
    suffix = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    for path in (folder, folder.with_name(f"{folder.name}-{suffix}")):
        if not path.exists():
            return embed(Network.from_run(run, pack), pack, path, options)
        features = Features.open(path)
        if (_preprocessing(features.meta), features.meta.sha256) == key:
            return features
    raise AlreadyExistsError(f"{path} holds features of another network", "remove it")


def _preprocessing(meta: FeaturesMeta) -> Preprocessing:
    return Preprocessing(
        mean=meta.mean or (), std=meta.std or (), crop=meta.crop, image_size=meta.image_size
    )


def embed(
    network: Network, pack: Pack, out: str | Path, options: EmbedOptions | None = None
) -> Features:
    """Write the features of `pack` to the folder `out`, resuming an interrupted call.

    Every process of a torchrun group calls this, and each gets the result.

    Args:
        network: The network.
        pack: The pack to embed.
        out: A new folder.
        options: Split, precision, batch size and device.

    Raises:
        AlreadyExistsError: `out` exists.
        BusyError: Another process is writing to `out`.
        InvalidValueError: An option is invalid, or the features are not finite.
    """
    options = options or EmbedOptions()
    validate(options)
    paths = FeaturePaths(Path(out))
    group = join(options.device)
    if group.on_first(paths.root.exists):
        raise AlreadyExistsError(f"{paths.root} exists already", "choose another name or remove it")
    positions = np.arange(len(pack)) if options.split == "all" else pack.indices(options.split)
    images = network.preprocessing
    model = network.model.to(group.device).eval()
    loader = Loader(pack, positions, group.device, resident=False, size=images.image_size)
    augment = Augment(images.mean, images.std, crop=images.crop)
    begin = time.monotonic()
    with disk_errors(paths.root), _locked(paths, group):
        plan = _plan(network, pack, options, len(positions))
        shape = _output_shape(model, augment, loader)
        group.on_first(lambda: _stage(paths.staging, plan, shape))
        work = ChunkWork(model, augment, loader, paths.staging, plan)
        chunks = group.on_first(work.missing)[group.rank :: group.world]
        _together(group, lambda: work.run(chunks, group), paths.staging)
        meta = replace(
            plan,
            dimension=shape[0],
            workers=group.world,
            seconds=round(time.monotonic() - begin, 3),
            versions=versions(),
        )
        group.on_first(lambda: _finish(paths, pack, positions, meta))
    return Features.open(paths.root)


def _plan(network: Network, pack: Pack, options: EmbedOptions, n: int) -> FeaturesMeta:
    """Return everything that determines the result; a partial folder is resumed if it is equal."""
    images = network.preprocessing
    return FeaturesMeta(
        format=FORMAT,
        pack=pack.name,
        fingerprint=pack.fingerprint,
        split=options.split,
        samples=n,
        model=network.name,
        run=network.run,
        weights=network.weights,
        sha256=network.sha256,
        **vars(images),
        probabilities=network.has_probabilities,
        dtype=options.dtype,
        batch_size=options.batch_size,
    )


@torch.inference_mode()
def _output_shape(model: nn.Module, augment: Augment, loader: Loader) -> tuple[int, int]:
    """Return the numbers of features and classes of the model, from one image."""
    if not len(loader):
        raise InvalidValueError(f"{loader.pack.name} has no samples in this split", "", "split")
    batch = loader.batch(loader.positions[:1])
    features, logits = features_and_logits(model, augment.evaluate(batch.images))
    return features.shape[1], logits.shape[1]


def _stage(staging: FeaturePaths, plan: FeaturesMeta, shape: tuple[int, int]) -> None:
    """Create the files at their full size, unless an interrupted call of the same plan did."""
    plan_file = staging.root / "plan.json"
    if plan_file.exists() and FeaturesMeta.from_json(read_json(plan_file)) == plan:
        return
    for old in staging.root.iterdir():
        if old.name != ".lock":
            old.unlink()
    files = [(staging.array, plan.dtype, shape[0])]
    if plan.probabilities:
        files.append((staging.probabilities, "float32", shape[1]))
    for file, dtype, width in files:
        shape_nd = (plan.samples or 0, width)
        np.lib.format.open_memmap(file, "w+", np.dtype(dtype), shape_nd).flush()
    write_json(plan_file, plan.to_json())


def _together(group: Group, work: Callable[[], None], staging: FeaturePaths) -> None:
    """Do `work` on every worker; if one fails, all raise its error and nothing is left."""
    failure: ThresherError | None = None
    try:
        work()
    except ThresherError as error:
        failure = error
    failures = group.gather((failure.what, failure.fix) if failure else None)
    for other in failures:
        if other is not None:
            group.on_first(lambda: shutil.rmtree(staging.root, ignore_errors=True))
            raise failure or ThresherError(*other)


def _finish(paths: FeaturePaths, pack: Pack, positions: np.ndarray, meta: FeaturesMeta) -> None:
    """Write the index and the metadata, remove the markers, and rename the folder into place."""
    staging = paths.staging
    index = pa.table(
        {"id": pack.ids.take(pa.array(positions)), "label": pa.array(pack.labels[positions])}
    )
    with atomic_file(staging.index) as temporary:
        pq.write_table(index, temporary)
    write_json(staging.meta, meta.to_json())
    for leftover in [*staging.root.glob("*.done"), staging.root / "plan.json"]:
        leftover.unlink()
    os.rename(staging.root, paths.root)
    (paths.root / ".lock").unlink(missing_ok=True)


@contextmanager
def _locked(paths: FeaturePaths, group: Group) -> Iterator[None]:
    """Let one call at a time write to a folder."""
    lock = exclusive_lock(
        paths.staging.root / ".lock", f"another process is writing to {paths.root}"
    )
    with ExitStack() as stack:
        group.on_first(lambda: stack.enter_context(lock))
        yield
