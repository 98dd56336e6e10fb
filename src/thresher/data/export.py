"""A pack, or what a selection keeps of it, written out in a format of others.

Ids, labels, splits and pixels go out so that they come back: packing an export of a whole pack
gives the same fingerprint. What a format has no place for lies in `thresher.json` beside it.
"""

import csv
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.images import encode_png
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.description import Description
from thresher.data.sources.folder import INDEX
from thresher.data.sources.needs import needed
from thresher.data.sources.protobuf import write_field
from thresher.errors import ThresherError, nearest
from thresher.paths import atomic_folder
from thresher.progress import track

SHARD_BYTES = 128 << 20
LMDB_KEY_LIMIT = 511


@dataclass(frozen=True)
class Sample:
    """A sample on its way out."""

    position: int
    id: str
    label: int
    split: str


def export(pack: Pack, out: Path, format: str, selection: Selection | None = None) -> int:
    """Write `pack` to the new folder `out`; how many samples were written.

    With a selection, dropped training samples stay behind; the other splits go out whole.
    """
    if format not in WRITERS:
        raise ThresherError(f'there is no format "{format}"', nearest(format, WRITERS))
    samples = _samples(pack, selection)
    about = Description(
        name=pack.name,
        classes=pack.classes,
        image_shape=pack.image_shape,
        fingerprint=pack.fingerprint if selection is None else "",
    )
    with atomic_folder(Path(out)) as folder:
        WRITERS[format](pack, samples, folder)
        about.write(folder)
    return len(samples)


def _samples(pack: Pack, selection: Selection | None) -> list[Sample]:
    ids, splits, labels = pack.ids.to_pylist(), pack.splits.to_pylist(), pack.labels
    keep = np.ones(len(pack), bool)
    if selection is not None:
        keep[pack.positions(selection.ids)] = False
        keep[selection.indices(pack)] = True
    return [Sample(int(n), ids[n], int(labels[n]), splits[n]) for n in np.flatnonzero(keep)]


def _file(pack: Pack, sample: Sample) -> tuple[str, bytes]:
    """The image as a file: its usual ending, and its bytes."""
    if pack.image_shape is not None:
        return "png", encode_png(pack.view(sample.position), fast=True)
    data = pack.encoded(sample.position)
    return _ending(data), data


def _ending(data: bytes) -> str:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return {"JPEG": "jpg", "TIFF": "tif"}.get(
            image.format or "", (image.format or "img").lower()
        )


def _tracked(samples: list[Sample], pack: Pack) -> Iterator[Sample]:
    return track(samples, f"exporting {pack.name}", unit="images")


def _plain_name(text: str) -> str:
    """A name that every file system takes; different names stay different."""
    plain = re.sub(r"[^\w.-]+", "_", text).strip("._")
    if plain == text and len(plain) <= 120:
        return plain
    return f"{plain[:100]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _folder(pack: Pack, samples: list[Sample], out: Path) -> None:
    """split/class/name.ext, and an index that keeps the ids."""
    names = [_plain_name(name) for name in pack.classes]
    width = len(str(len(pack)))
    with open(out / INDEX, "w", newline="", encoding="utf-8") as file:
        index = csv.writer(file, lineterminator="\n")
        index.writerow(["file", "id", "label", "split", "bytes"])
        for sample in _tracked(samples, pack):
            ending, data = _file(pack, sample)
            place = f"{_plain_name(sample.split)}/{names[sample.label]}"
            path = f"{place}/{sample.position:0{width}d}.{ending}"
            (out / place).mkdir(parents=True, exist_ok=True)
            (out / path).write_bytes(data)
            index.writerow([path, sample.id, sample.label, sample.split, len(data)])


def _webdataset(pack: Pack, samples: list[Sample], out: Path) -> None:
    """SPLIT-000000.tar …: per sample an image, `.cls` and `.json`."""
    for split, shards in _in_shards(pack, samples).items():
        number = 0
        for n, part in enumerate(shards):
            with tarfile.open(out / f"{_plain_name(split)}-{n:06d}.tar", "w") as tar:
                for sample in _tracked(part, pack):
                    ending, data = _file(pack, sample)
                    said = {"id": sample.id, "label": sample.label, "split": sample.split}
                    _add(tar, f"{number:08d}.{ending}", data)
                    _add(tar, f"{number:08d}.cls", str(sample.label).encode())
                    _add(tar, f"{number:08d}.json", json.dumps(said).encode())
                    number += 1


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _tfrecord(pack: Pack, samples: list[Sample], out: Path) -> None:
    """SPLIT-00000-of-0000N, in ImageNet's layout: labels from 1."""
    writer_of = needed("tfrecord.writer", "containers").TFRecordWriter
    for split, shards in _in_shards(pack, samples).items():
        for n, part in enumerate(shards):
            file = out / f"{_plain_name(split)}-{n:05d}-of-{len(shards):05d}"
            writer = writer_of(str(file))
            for sample in _tracked(part, pack):
                ending, data = _file(pack, sample)
                writer.write(
                    {
                        "image/encoded": (data, "byte"),
                        "image/format": (ending.upper().encode(), "byte"),
                        "image/class/label": (sample.label + 1, "int"),
                        "image/class/text": (pack.classes[sample.label].encode(), "byte"),
                        "image/filename": (sample.id.encode(), "byte"),
                        "image/split": (sample.split.encode(), "byte"),
                    }
                )
            writer.close()


def _lmdb(pack: Pack, samples: list[Sample], out: Path) -> None:
    """One database per split, a Caffe `Datum` per sample, its id as the key."""
    lmdb = needed("lmdb", "containers")
    for split, part in _by_split(samples).items():
        each = _average_bytes(pack)
        room = 2 * len(part) * (each + 4096) + (64 << 20)
        env = lmdb.open(str(out / _plain_name(split)), map_size=room, sync=False)
        transaction = env.begin(write=True)
        for n, sample in enumerate(_tracked(part, pack)):
            key = sample.id.encode()
            if len(key) > LMDB_KEY_LIMIT:
                raise ThresherError(f'the id "{sample.id[:40]}…" is too long for LMDB')
            transaction.put(key, _datum(pack, sample))
            if n % 1000 == 999:
                transaction.commit()
                transaction = env.begin(write=True)
        transaction.commit()
        env.sync(True)
        env.close()
        (out / _plain_name(split) / "lock.mdb").unlink(missing_ok=True)


def _datum(pack: Pack, sample: Sample) -> bytes:
    if pack.image_shape is None:
        data = pack.encoded(sample.position)
        return write_field(4, data) + write_field(5, sample.label) + write_field(7, 1)
    height, width, channels = pack.image_shape
    image = pack.view(sample.position)
    image = image[:, :, ::-1] if channels == 3 else image  # Caffe keeps blue first
    planes = np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes()
    sizes = b"".join(write_field(n + 1, v) for n, v in enumerate((channels, height, width)))
    return sizes + write_field(4, planes) + write_field(5, sample.label)


def _hdf5(pack: Pack, samples: list[Sample], out: Path) -> None:
    """One file: images, labels, ids, splits; raw images in one block, encoded ones as bytes."""
    h5py = needed("h5py", "containers")
    n = len(samples)
    with h5py.File(out / f"{_plain_name(pack.name)}.h5", "w") as file:
        text = h5py.string_dtype()
        file["labels"] = np.array([sample.label for sample in samples], np.int32)
        file.create_dataset("ids", data=[sample.id for sample in samples], dtype=text)
        file.create_dataset("splits", data=[sample.split for sample in samples], dtype=text)
        positions = np.array([sample.position for sample in samples], np.int64)
        about = Description(pack.name, pack.classes, pack.image_shape)
        file.attrs["thresher"] = json.dumps(about.as_json())
        file.attrs["classes"] = pack.classes
        if pack.image_shape is None:
            images = file.create_dataset("images", (n,), dtype=h5py.vlen_dtype(np.uint8))
            for row, sample in enumerate(_tracked(samples, pack)):
                images[row] = np.frombuffer(pack.encoded(sample.position), np.uint8)
            return
        images = file.create_dataset("images", (n, *pack.image_shape), dtype=np.uint8)
        step = max(1, (8 << 20) // int(np.prod(pack.image_shape)))
        for at in track(range(0, n, step), f"exporting {pack.name}", unit="blocks"):
            images[at : at + step] = pack.images(positions[at : at + step])


def _by_split(samples: list[Sample]) -> dict[str, list[Sample]]:
    parts: dict[str, list[Sample]] = {}
    for sample in samples:
        parts.setdefault(sample.split, []).append(sample)
    return parts


def _in_shards(pack: Pack, samples: list[Sample]) -> dict[str, list[list[Sample]]]:
    """Per split, its samples in parts of about SHARD_BYTES."""
    found = {}
    for split, part in _by_split(samples).items():
        count = max(1, -(-len(part) * _average_bytes(pack) // SHARD_BYTES))
        bounds = [len(part) * n // count for n in range(count + 1)]
        found[split] = [part[bounds[n] : bounds[n + 1]] for n in range(count)]
    return found


def _average_bytes(pack: Pack) -> int:
    return 1 + sum(shard["bytes"] for shard in pack.meta["shards"]) // max(1, len(pack))


WRITERS: dict[str, Callable[[Pack, list[Sample], Path], Any]] = {
    "folder": _folder,
    "webdataset": _webdataset,
    "tfrecord": _tfrecord,
    "lmdb": _lmdb,
    "hdf5": _hdf5,
}
