"""Compute the penultimate features of a pack, in evaluation mode and without augmentation.

The work is divided into chunks of samples. A chunk is done when its marker exists, which is
created after its rows are on disk; a second call computes the missing chunks. Rows do not depend
on the number of workers, because batches do not cross chunks.
"""

import copy
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from thresher.data.augment import Augment
from thresher.data.digest import file_sha256, order_digest
from thresher.data.images import resized
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.device_check import check_agreement, host_of, is_tested, moved
from thresher.distributed.group import Group, join
from thresher.environment import core_count, versions
from thresher.errors import AlreadyExistsError, InvalidValueError, ThresherError, check_type
from thresher.foreign_data import instead_of
from thresher.locks import exclusive_lock
from thresher.models import registry
from thresher.models.embed_config import EFFICIENTNET, EmbedConfig, EmbedOptions
from thresher.models.feature_source import check_trained, find_features
from thresher.models.features import FORMAT, FeaturePaths, Features, FeaturesMeta
from thresher.models.network import Network, Preprocessing, source_of_run, weights_of_run
from thresher.models.pretrained import load_pretrained
from thresher.options import validate
from thresher.paths import allocate, as_path, atomic_file, disk_errors, home, read_json, write_json
from thresher.progress import bar

BATCHES_PER_CHUNK = 8


def embed_pack(config: EmbedConfig, pack: Pack, out: str | Path) -> Features:
    """Load the network that `config` names and write its features of `pack` to `out`.

    Every process of a torchrun group calls this, and each gets the result.
    """
    check_type(pack, Pack, "pack", "a Pack", instead_of(pack))
    config.check()
    if config.is_hugging_face:
        from thresher.models.hugging_face import load_extractor

        positions = _positions(pack, config.split)
        return embed(load_extractor(config, pack, positions), pack, out, config)
    if config.run is not None:
        network = Network.from_run(config.run, pack)
    elif config.model == EFFICIENTNET:
        network = load_pretrained(config)
    else:
        assert config.model is not None
        assert config.weights is not None
        registry.check(config.model)
        images = Preprocessing.of_model(config.model, pack).replaced(config)
        network = Network.from_weights(config.model, config.weights, pack, images)
    if config.features_from is not None and not network.has_trained_head:
        check_trained(network.model, config.features_from)
    return embed(replace(network, features_from=config.features_from), pack, out, config)


def features_of_run(run: str | Path, pack: Pack, options: EmbedOptions | None = None) -> Features:
    """Return the features of a pack by a run's network, stored in the run's folder, or in the cache
    if that folder is read-only, such as that of a colleague.

    Stored features are reused if the checksums of the weights and of a network's own file, the
    preprocessing and the samples of the split are still the same. Otherwise new features are
    computed with `options`, and the old ones stay. An interrupted call resumes.
    """
    options = options or EmbedOptions()
    images, sha256 = Preprocessing.of_run(run, pack), file_sha256(weights_of_run(run))
    source = source_of_run(run)
    split = "" if options.split == "train" else f"-{options.split}"
    name = f"features{split}-{pack.fingerprint[:12]}"
    used = (images, sha256) if source is None else (images, sha256, source)
    suffix = hashlib.sha256(repr(used).encode()).hexdigest()[:12]
    other = f"{name}-{suffix}"
    # The fingerprint says nothing of splits: packed again, other samples may be in this one.
    ids = sorted(pack.ids.take(_positions(pack, options.split)).to_pylist())
    names, folders = (name, other, f"{other}-{order_digest(ids)}"), [Path(run)]
    read_only = not os.access(run, os.W_OK)
    if read_only:
        folders.append(home() / "features" / sha256[:16])
    for path in (folder / name for folder in folders for name in names):
        if not path.exists():
            if read_only and path.parent == folders[0]:
                continue
            return embed(Network.from_run(run, pack), pack, path, options)
        features = Features.open(path)
        prepared = {name: getattr(features.meta, name) for name in vars(images)}
        same = prepared == vars(images) and features.meta.sha256 == sha256
        same &= source is None or features.meta.model_source in (None, source)
        if same and sorted(features.ids) == ids:
            return features
    raise AlreadyExistsError(f"{path} holds features of another network", "remove it")


def _check_channels(network: Network, pack: Pack) -> None:
    """Raise unless the network takes the channels of the images; grey ones are repeated."""
    own, taken = pack.image_shape[2] if pack.image_shape else 3, len(network.preprocessing.mean)
    if own not in (1, taken):
        raise InvalidValueError(
            f"{network.name} takes images of {taken} channels, but those of {pack.name} have {own}",
            "choose another network",
        )


def _positions(pack: Pack, split: str) -> np.ndarray:
    return np.arange(len(pack)) if split == "all" else pack.indices(split)


def embed(
    network: Network, pack: Pack, out: str | Path, options: EmbedOptions | None = None
) -> Features:
    """Write the features of `pack` to the folder `out`, resuming an interrupted call.

    Every process of a torchrun group calls this, and each gets the result.

    Raises:
        AlreadyExistsError: `out` exists.
        BusyError: Another process is writing to `out`.
        InvalidValueError: An option is invalid, or the features are not finite.
    """
    options = options or EmbedOptions()
    validate(options)
    paths = FeaturePaths(as_path(out, "out"))
    group = join(options.device)
    if group.on_first(paths.root.exists):
        raise AlreadyExistsError(f"{paths.root} exists already", "choose another name or remove it")
    positions = _positions(pack, options.split)
    images = network.preprocessing
    _check_channels(network, pack)
    model = network.model.to(group.device).eval()
    threads = max(1, core_count() // group.local_world)
    home = host_of(group.device)
    loader = Loader(pack, positions, home, False, images.image_size, threads)
    loader.resample = images.resample
    augment = Augment(images.mean, images.std, crop=images.crop)
    begin = time.monotonic()

    def prepare(pixels: Tensor) -> Tensor:
        """Scale raw images as encoded ones are when they are decoded, then normalise them."""
        size = images.image_size
        if size is not None and pixels.shape[1:3] != (size, size):
            scaled = resized(pixels.cpu().numpy(), size, images.resample, threads=threads)
            pixels = torch.from_numpy(scaled).to(pixels.device)
        return moved(augment.evaluate(pixels), group.device)

    with _unfinished(paths, group):
        if not len(positions):
            raise InvalidValueError(f"{pack.name} has no samples in this split", "", "split")
        # Two samples, if there are: of one, a network may drop the dimension.
        some = prepare(loader.batch(positions[:2]).images)
        source = find_features(model, some, len(pack.classes), network.features_from)
        if not is_tested(group.device):
            on_cpu = source.run(copy.deepcopy(model).to(home), some.to(home))
            check_agreement("features", group.device, [*source.run(model, some)], [*on_cpu])
        probabilities = network.has_probabilities and source.is_head
        plan = _plan(replace(network, has_probabilities=probabilities), pack, options, positions)
        shape = (source.width, source.classes)
        group.on_first(lambda: _stage(paths, plan, shape))
        run = partial(source.run, model)
        work = _ChunkWork(loader, prepare, run, paths.staging, plan, options.batch_size)
        chunks = group.on_first(work.missing)[group.rank :: group.world]
        _together(group, lambda: work.run(chunks, group), paths)
        meta = replace(
            plan,
            dimension=shape[0],
            workers=group.world,
            seconds=round(time.monotonic() - begin, 3),
            versions=versions(),
        )
        group.on_first(lambda: _finish(paths, pack, positions, meta))
    return Features.open(paths.root)


@dataclass(frozen=True)
class _ChunkWork:
    """Computes features on one worker, and marks the chunks that are on disk."""

    loader: Loader
    prepare: Callable[[Tensor], Tensor]
    network: Callable[[Tensor], tuple[Tensor, Tensor]]
    """Returns features and logits of prepared images."""
    staging: FeaturePaths
    plan: FeaturesMeta
    batch_size: int

    def missing(self) -> list[int]:
        """Return the first rows of the chunks that are not done."""
        begins = range(0, len(self.loader), self.batch_size * BATCHES_PER_CHUNK)
        return [begin for begin in begins if not self._marker(begin).exists()]

    @torch.inference_mode()
    def run(self, chunks: list[int], group: Group) -> None:
        """Compute the chunks that begin at these rows; mark each when it is on disk."""
        spans = [(begin, *span) for begin in chunks for span in self._spans(begin)]
        array = np.load(self.staging.array, mmap_mode="r+")
        classes = None
        if self.plan.probabilities:
            classes = np.load(self.staging.probabilities, mmap_mode="r+")
        label = "embedding" if group.alone else f"embedding (worker 1 of {group.world})"
        with bar(label, sum(end - first for _, first, end in spans), "samples") as shown:
            order = (self.loader.positions[first:end] for _, first, end in spans)
            for (begin, first, end), batch in zip(spans, self.loader.batches(order), strict=True):
                features, logits = self.network(self.prepare(batch.images))
                array[first:end] = self._stored(features, array.dtype)
                if classes is not None:
                    classes[first:end] = logits.float().softmax(1).cpu().numpy()
                if end == self._spans(begin)[-1][1]:
                    array.flush()
                    if classes is not None:
                        classes.flush()
                    self._marker(begin).touch()
                if group.first:
                    shown.advance(end - first)

    def _spans(self, begin: int) -> list[tuple[int, int]]:
        """Return the batches of a chunk as (first, end) rows."""
        last = min(begin + self.batch_size * BATCHES_PER_CHUNK, len(self.loader))
        firsts = range(begin, last, self.batch_size)
        return [(first, min(first + self.batch_size, last)) for first in firsts]

    def _marker(self, begin: int) -> Path:
        return self.staging.root / f"{begin}.done"

    def _stored(self, features: Tensor, dtype: np.dtype[Any]) -> np.ndarray:
        exact = features.float().cpu().numpy()
        if not np.isfinite(exact).all():
            raise InvalidValueError(
                f"the features of {self.plan.run or self.plan.model} are not finite",
                "the run diverged, or its weights are damaged: choose another",
            )
        with np.errstate(over="ignore"):
            stored = exact.astype(dtype)
        if not np.isfinite(stored).all():
            raise InvalidValueError("features are too large for float16", "use `dtype` float32")
        return stored


def _plan(
    network: Network, pack: Pack, options: EmbedOptions, positions: np.ndarray
) -> FeaturesMeta:
    """Return everything that determines the result; a partial folder is resumed if it is equal."""
    # The fingerprint says nothing of the order: rows that are done may be of other samples.
    ids = pack.ids.take(positions).to_pylist()
    return FeaturesMeta(
        format=FORMAT,
        pack=pack.name,
        fingerprint=pack.fingerprint,
        split=options.split,
        samples=len(ids),
        order=order_digest(ids),
        model=network.name,
        run=network.run,
        weights=network.weights,
        sha256=network.sha256,
        model_source=network.model_source,
        **vars(network.preprocessing),
        features_from=network.features_from,
        pooling=network.pooling,
        probabilities=network.has_probabilities,
        dtype=options.dtype,
        batch_size=options.batch_size,
    )


def _stage(paths: FeaturePaths, plan: FeaturesMeta, shape: tuple[int, int]) -> None:
    """Create the files at their full size, unless an interrupted call of the same plan did."""
    staging = paths.staging
    plan_file = staging.root / "plan.json"
    with disk_errors(paths.root):
        if plan_file.exists() and FeaturesMeta.from_json(read_json(plan_file)) == plan:
            return
        for old in staging.root.iterdir():
            if old.name != ".lock":
                old.unlink()
        files = [(staging.array, plan.dtype, shape[0])]
        if plan.probabilities:
            files.append((staging.probabilities, "float32", shape[1]))
        for file, dtype, width in files:
            size = (plan.samples or 0, width)
            np.lib.format.open_memmap(file, "w+", np.dtype(dtype), size).flush()
            allocate(file)
        write_json(plan_file, plan.to_json())


def _together(group: Group, work: Callable[[], None], paths: FeaturePaths) -> None:
    """Do `work` on every worker; if one fails, all raise its error."""
    failure: ThresherError | None = None
    try:
        with disk_errors(paths.root):
            work()
    except ThresherError as error:
        failure = error
    for other in group.gather((failure.what, failure.fix) if failure else None):
        if other is not None:
            raise failure or ThresherError(*other)


def _finish(paths: FeaturePaths, pack: Pack, positions: np.ndarray, meta: FeaturesMeta) -> None:
    """Write the index and the metadata, remove the markers, and rename the folder into place."""
    staging = paths.staging
    index = pa.table({"id": pack.ids.take(positions), "label": pack.labels[positions]})
    with disk_errors(paths.root):
        with atomic_file(staging.index) as temporary:
            pq.write_table(index, temporary)
        write_json(staging.meta, meta.to_json())
        for leftover in [*staging.root.glob("*.done"), staging.root / "plan.json"]:
            leftover.unlink()
        os.rename(staging.root, paths.root)
        (paths.root / ".lock").unlink(missing_ok=True)


@contextmanager
def _unfinished(paths: FeaturePaths, group: Group) -> Iterator[None]:
    """Lock the unfinished folder; remove it if the block fails. A kill leaves it, to be resumed."""
    file, message = paths.staging.root / ".lock", f"another process is writing to {paths.root}"
    lock = exclusive_lock(file, message)
    with ExitStack() as stack:
        group.on_first(lambda: stack.enter_context(lock))
        try:
            yield
        except ThresherError:
            if group.first:
                shutil.rmtree(paths.staging.root, ignore_errors=True)
            raise
