"""Write a pack, or the samples that a selection keeps, in another format.

Ids, labels, splits and pixels are kept, and encoded files byte by byte: packing the export of a
whole pack gives the same fingerprint. What a format cannot store is written to `thresher.json`
beside it.
"""

import csv
import hashlib
import io
import json
import logging
import re
import tarfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from thresher.data.images import MODES, encode_png
from thresher.data.labels import mention_untrained
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.encoded import Description
from thresher.data.sources.folder import INDEX, content_digest
from thresher.data.sources.protobuf import write_field
from thresher.errors import InvalidValueError, ThresherError, check_type, counted, nearest
from thresher.foreign_data import instead_of
from thresher.options import to_mapping
from thresher.paths import allocate, as_path, atomic_folder
from thresher.plugins import import_optional
from thresher.progress import track

logger = logging.getLogger(__name__)
SHARD_BYTES = 128 << 20
LMDB_KEY_LIMIT = 511
NAME_BYTES = 200
"""Longer names of classes and files are cut: file systems accept 255 bytes."""
_SUFFIXES = {"JPEG": "jpg", "MPO": "jpg", "JPEG2000": "jp2", "TIFF": "tif"}
"""Of formats whose files are not called after them; an MPO file is a JPEG with more images."""


class ExportedSample(NamedTuple):
    """A sample to export and its position in the pack."""

    position: int
    id: str
    label: int
    split: str


def export(pack: Pack, out: Path, format: str, selection: Selection | None = None) -> int:
    """Write a pack to a new folder; return the number of samples written.

    Args:
        pack: The pack.
        out: Folder to create.
        format: "folder", "webdataset", "tfrecord", "lmdb" or "hdf5".
        selection: Leave out the training samples that it drops or does not name, as training
            does, and write its new labels; other splits are complete.
    """
    check_type(pack, Pack, "pack", "a Pack", instead_of(pack))
    if format not in WRITERS:
        raise InvalidValueError(f'unknown export format "{format}"', nearest(format, WRITERS))
    keep, labels = np.ones(len(pack), bool), pack.labels
    if selection is not None:
        training = pc.equal(pack.splits, "train").to_numpy()
        kept = selection.indices(pack)
        keep[training] = False
        keep[kept] = True
        labels = selection.labels_of(pack)
        if unnamed := int(training.sum()) - len(selection.ids):
            logger.warning(
                f"{counted(unnamed, 'training sample is', 'training samples are')} left out "
                f"because the selection does not name {'it' if unnamed == 1 else 'them'}, as those "
                "that a study holds out"
            )
        # Readers that number the folders of each split, as torchvision's, would disagree on labels.
        mention_untrained(pack.classes, labels[training & keep], labels[~training])
    samples = samples_at(pack, np.flatnonzero(keep), labels)
    if not samples:
        raise InvalidValueError(
            "there is no image to export: the selection keeps none", "keep some"
        )
    fingerprint = pack.fingerprint if selection is None else ""
    with atomic_folder(as_path(out, "out")) as folder:
        WRITERS[format](pack, samples, folder)
        names = {_safe_name(split): split for split in pack.meta.splits}
        renamed = {name: split for name, split in names.items() if name != split}
        description = Description(pack.name, pack.classes, pack.image_shape, fingerprint, renamed)
        description.write(folder)
    return len(samples)


def samples_at(
    pack: Pack, positions: np.ndarray, labels: np.ndarray | None = None
) -> list[ExportedSample]:
    """Return the samples at these positions of a pack; `labels` (n,) replace those of the pack."""
    labels = pack.labels if labels is None else labels
    rows = zip(
        positions.tolist(),
        pack.ids.take(positions).to_pylist(),
        labels[positions].tolist(),
        pack.splits.take(positions).to_pylist(),
        strict=True,
    )
    return [ExportedSample(*row) for row in rows]


def _file(pack: Pack, sample: ExportedSample) -> tuple[str, bytes]:
    """Return the image as a file: its usual suffix, and its bytes."""
    if pack.image_shape is not None:
        if pack.image_shape[2] not in MODES:
            raise InvalidValueError(
                f"images of {pack.image_shape[2]} channels cannot be written as files",
                "export to hdf5 or lmdb",
                "format",
            )
        return "png", encode_png(pack.view(sample.position), fast=True)
    from PIL import Image

    data = pack.encoded(sample.position)
    with Image.open(io.BytesIO(data)) as image:
        kind = image.format or "img"
    return _SUFFIXES.get(kind, kind.lower()), data


def _tracked(samples: list[ExportedSample], pack: Pack) -> Iterator[ExportedSample]:
    return track(samples, f"exporting {pack.name}", unit="images")


def _safe_name(text: str) -> str:
    """Return a name that needs no quotes; different names stay different."""
    return _distinct(text, re.sub(r"[^\w.-]+", "_", text).strip("._"))


def _file_name(text: str) -> str:
    """Return a name that every file system accepts; different names stay different."""
    return _distinct(text, re.sub(r'[\x00-\x1f<>:"/\\|?*]+', "_", text).strip(". "))


def _distinct(text: str, safe: str) -> str:
    """Return `safe`, with a hash if it is not the whole text."""
    name = safe.encode()
    if safe == text and len(name) <= NAME_BYTES:
        return safe
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[:100].decode(errors='ignore')}-{digest}"


def _folder(pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    """Write split/class/name.ext, and an index that keeps the ids.

    Classes and files keep their names where every file system accepts them.
    """
    names = [_file_name(name) for name in pack.classes]
    used: set[str] = set()
    # Python's writer does not put a carriage return in quotes, but its reader ends the line there.
    returns = any("\r" in sample.id + sample.split for sample in samples)
    with open(out / INDEX, "w", newline="", encoding="utf-8") as file:
        index = csv.writer(
            file, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
        )
        index.writerow(["file", "id", "label", "split", "bytes", "sha256"])
        for sample in _tracked(samples, pack):
            suffix, data = _file(pack, sample)
            folder = f"{_safe_name(sample.split)}/{names[sample.label]}"
            path = _unused(f"{folder}/{_image_name(sample.id, suffix)}", sample.position, used)
            (out / folder).mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(data)
            row = [path, sample.id, sample.label, sample.split, len(data), content_digest(data)]
            index.writerow(row)


def _image_name(id: str, suffix: str) -> str:
    """Return the last part of an id as the name of a file of this format."""
    from PIL import Image

    name = _file_name(id.rsplit("/", 1)[-1])
    stem, _, ending = name.rpartition(".")
    formats = Image.registered_extensions()
    format = formats.get(f".{ending.lower()}") if stem else None
    if format is None:
        return f"{name}.{suffix}"
    return name if format == formats.get(f".{suffix}") else f"{stem}.{suffix}"


def _unused(path: str, position: int, used: set[str]) -> str:
    """Return the path, with the position in the pack if another sample has it; add it to `used`.

    Upper and lower case are the same name on some file systems.
    """
    while path.casefold() in used:
        stem, _, suffix = path.rpartition(".")
        path = f"{stem}-{position}.{suffix}"
    used.add(path.casefold())
    return path


def _webdataset(pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    """Write SPLIT-000000.tar …: per sample an image, `.cls` and `.json`."""
    for split, shards in _in_shards(pack, samples).items():
        number = 0
        for n, part in enumerate(shards):
            with tarfile.open(out / f"{_safe_name(split)}-{n:06d}.tar", "w") as tar:
                for sample in _tracked(part, pack):
                    suffix, data = _file(pack, sample)
                    fields = {"id": sample.id, "label": sample.label, "split": sample.split}
                    members = {
                        suffix: data,
                        "cls": str(sample.label).encode(),
                        "json": json.dumps(fields).encode(),
                    }
                    for kind, content in members.items():
                        member = tarfile.TarInfo(f"{number:08d}.{kind}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))
                    number += 1


def _tfrecord(pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    """Write SPLIT-00000-of-0000N in ImageNet's layout: labels from 1."""
    tfrecord = import_optional("tfrecord.writer", "containers")
    for split, shards in _in_shards(pack, samples).items():
        for n, part in enumerate(shards):
            file = out / f"{_safe_name(split)}-{n:05d}-of-{len(shards):05d}"
            writer = tfrecord.TFRecordWriter(str(file))
            for sample in _tracked(part, pack):
                suffix, data = _file(pack, sample)
                writer.write(
                    {
                        "image/encoded": (data, "byte"),
                        "image/format": (suffix.upper().encode(), "byte"),
                        "image/class/label": (sample.label + 1, "int"),
                        "image/class/text": (pack.classes[sample.label].encode(), "byte"),
                        "image/filename": (sample.id.encode(), "byte"),
                        "image/split": (sample.split.encode(), "byte"),
                    }
                )
            writer.close()


def _lmdb(pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    """Write one database per split, a Caffe `Datum` per sample, its id as the key."""
    lmdb = import_optional("lmdb", "containers")
    try:
        _write_lmdb(lmdb, pack, samples, out)
    except lmdb.Error as error:
        # LMDB reports a full disk as an input/output error.
        raise ThresherError(f"LMDB cannot write ({error})", "check the free disk space") from None


def _write_lmdb(lmdb: Any, pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    for split, part in _by_split(samples).items():
        map_size = 2 * (_image_bytes(pack, part) + 4096 * len(part)) + (64 << 20)
        env = lmdb.open(str(out / _safe_name(split)), map_size=map_size, sync=False)
        transaction = env.begin(write=True)
        for n, sample in enumerate(_tracked(part, pack)):
            key = sample.id.encode()
            if len(key) > LMDB_KEY_LIMIT:
                raise InvalidValueError(f'the id "{sample.id[:40]}…" is too long for LMDB')
            transaction.put(key, _datum(pack, sample))
            if n % 1000 == 999:
                transaction.commit()
                transaction = env.begin(write=True)
        transaction.commit()
        env.sync(True)
        env.close()
        (out / _safe_name(split) / "lock.mdb").unlink(missing_ok=True)


def _datum(pack: Pack, sample: ExportedSample) -> bytes:
    if pack.image_shape is None:
        data = pack.encoded(sample.position)
        return write_field(4, data) + write_field(5, sample.label) + write_field(7, 1)
    height, width, channels = pack.image_shape
    image = pack.view(sample.position)
    image = image[:, :, ::-1] if channels == 3 else image  # Caffe stores blue first
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes()
    sizes = b"".join(write_field(n + 1, v) for n, v in enumerate((channels, height, width)))
    return sizes + write_field(4, planes) + write_field(5, sample.label)


def _hdf5(pack: Pack, samples: list[ExportedSample], out: Path) -> None:
    """Write one file: images, labels, ids, splits; raw images in one array, others as bytes."""
    h5py = import_optional("h5py", "containers")
    n = len(samples)
    _reserve(out, _image_bytes(pack, samples))
    with h5py.File(out / f"{_safe_name(pack.name)}.h5", "w") as file:
        text = h5py.string_dtype()
        file["labels"] = np.array([sample.label for sample in samples], np.int32)
        file.create_dataset("ids", data=[sample.id for sample in samples], dtype=text)
        file.create_dataset("splits", data=[sample.split for sample in samples], dtype=text)
        description = Description(pack.name, pack.classes, pack.image_shape)
        file.attrs["thresher"] = json.dumps(to_mapping(description))
        file.attrs["classes"] = pack.classes
        if pack.image_shape is None:
            images = file.create_dataset("images", (n,), dtype=h5py.vlen_dtype(np.uint8))
            for row, sample in enumerate(_tracked(samples, pack)):
                images[row] = np.frombuffer(pack.encoded(sample.position), np.uint8)
            return
        positions = np.array([sample.position for sample in samples], np.int64)
        images = file.create_dataset("images", (n, *pack.image_shape), dtype=np.uint8)
        step = max(1, (8 << 20) // int(np.prod(pack.image_shape)))
        for begin in track(range(0, n, step), f"exporting {pack.name}", unit="blocks"):
            images[begin : begin + step] = pack.images(positions[begin : begin + step])


def _reserve(out: Path, size: int) -> None:
    """Raise OSError if the disk cannot hold `size` bytes: HDF5 crashes when it becomes full."""
    reserved = out / ".reserved"
    try:
        with open(reserved, "wb") as file:
            file.truncate(size)
        allocate(reserved)
    finally:
        reserved.unlink(missing_ok=True)


def _by_split(samples: list[ExportedSample]) -> dict[str, list[ExportedSample]]:
    names = dict.fromkeys(sample.split for sample in samples)
    return {name: [sample for sample in samples if sample.split == name] for name in names}


def _in_shards(pack: Pack, samples: list[ExportedSample]) -> dict[str, list[list[ExportedSample]]]:
    """Return the samples of each split in parts of about SHARD_BYTES."""
    shards = {}
    for split, part in _by_split(samples).items():
        count = min(len(part), 1 + _image_bytes(pack, part) // SHARD_BYTES)
        bounds = [len(part) * n // count for n in range(count + 1)]
        shards[split] = [part[begin:end] for begin, end in pairwise(bounds)]
    return shards


def _image_bytes(pack: Pack, samples: list[ExportedSample]) -> int:
    """Return the bytes of these images; those of one split may be much larger than others."""
    if pack.image_shape is not None:
        return len(samples) * int(np.prod(pack.image_shape))
    files = pack.encoded_buffers()
    positions = np.array([sample.position for sample in samples], np.int64)
    return int((files.end - files.begin)[positions].sum())


WRITERS: dict[str, Callable[[Pack, list[ExportedSample], Path], None]] = {
    "folder": _folder,
    "webdataset": _webdataset,
    "tfrecord": _tfrecord,
    "lmdb": _lmdb,
    "hdf5": _hdf5,
}
