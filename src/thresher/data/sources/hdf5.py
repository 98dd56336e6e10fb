"""HDF5: `images` and `labels`, at the root or in a group per split; raw arrays or encoded files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.sources.arrays import as_images, names_of, pick
from thresher.data.sources.base import Block
from thresher.data.sources.description import described
from thresher.data.sources.encoded import (
    EncodedSource,
    class_names,
    common_shape,
    in_blocks,
    split_of,
)
from thresher.data.sources.needs import needed
from thresher.errors import ThresherError

ROWS_PER_CHUNK = 20_000
BLOCK_BYTES = 8 << 20


class Hdf5(EncodedSource):
    """One .h5 file. Beside `images` and `labels` there may be `ids` and `splits` (strings)."""

    def __init__(self, path: Path, name: str | None = None, classes: Path | None = None) -> None:
        self.path = Path(path)
        with _opened(self.path) as file:
            said = file.attrs.get("thresher")
            about = described(json.loads(said), self.path) if said else None
            self.groups = _groups(file, self.path)
            first, _ = _pair(file, self.groups[0], self.path)
            self.raw = first.ndim > 1
            self.name = name or (about.name if about else self.path.stem)
            if about is not None:
                self.classes = about.classes
                self.image_shape, self.shape_is_guess = about.image_shape, False
                return
            self.classes = class_names(
                classes,
                lambda: [
                    int(np.max(_pair(file, group, self.path)[1][...], initial=-1))
                    for group in self.groups
                ],
            )
            if self.raw:
                probe = as_images(first[:1], f"{self.path}")
                self.image_shape = (probe.shape[1], probe.shape[2], probe.shape[3])
                self.shape_is_guess = False
            else:
                self.image_shape = common_shape(bytes(first[n]) for n in range(min(len(first), 64)))

    def key(self) -> str:
        return f"hdf5 {self.path.name}, {self.path.stat().st_size} bytes"

    def chunks(self) -> list[str]:
        found = []
        with _opened(self.path) as file:
            for number, group in enumerate(self.groups):
                rows = len(_pair(file, group, self.path)[0])
                found += [f"{number}:{begin}" for begin in range(0, rows, ROWS_PER_CHUNK)]
        return found

    def read(self, chunk: str) -> Iterator[Block]:
        number, begin = (int(part) for part in chunk.split(":"))
        with _opened(self.path) as file:
            group = self.groups[number]
            images, labels = _pair(file, group, self.path)
            end = min(begin + ROWS_PER_CHUNK, len(images))
            step = ROWS_PER_CHUNK
            if self.raw:
                step = max(1, BLOCK_BYTES // int(np.prod(images.shape[1:])))
            for at in range(begin, end, step):
                till = min(at + step, end)
                ids = _strings(file, group, "ids", at, till) or [
                    f"{group.strip('/') or self.path.stem}/{n:06d}" for n in range(at, till)
                ]
                splits = _strings(file, group, "splits", at, till)
                splits = splits or [split_of(group)] * (till - at)
                here = np.asarray(labels[at:till]).reshape(till - at).astype(np.int64)
                if self.raw:
                    yield Block(ids, here, splits, as_images(images[at:till], ids[0]))
                else:
                    files = (bytes(images[n]) for n in range(at, till))
                    yield from in_blocks(zip(ids, here.tolist(), splits, files, strict=True))


def _opened(path: Path) -> Any:
    h5py = needed("h5py", "containers")
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise ThresherError(f"there is no file {path}", "check the path") from None
    except OSError:
        raise ThresherError(f"{path} is cut short or is not an HDF5 file", "get it again") from None


def _groups(file: Any, path: Path) -> list[str]:
    """The groups that hold images: the root, or one per split."""
    places = ["/", *(f"/{name}" for name in file if hasattr(file[name], "keys"))]
    found = [place for place in places if pick("images", list(file[place]))]
    if not found:
        raise ThresherError(f"{path} holds no data set named images", names_of("images"))
    return found


def _pair(file: Any, group: str, path: Path) -> tuple[Any, Any]:
    here = file[group]
    names = [pick(kind, list(here)) for kind in ("images", "labels")]
    if names[0] is None or names[1] is None:
        raise ThresherError(f"{path}{group} has images but no labels", names_of("labels"))
    images, labels = here[names[0]], here[names[1]]
    if len(images) != len(labels):
        raise ThresherError(f"{path}{group} has {len(images)} images and {len(labels)} labels")
    return images, labels


def _strings(file: Any, group: str, name: str, begin: int, end: int) -> list[str]:
    if name not in file[group]:
        return []
    return [
        value.decode("utf-8") if isinstance(value, bytes) else str(value)
        for value in file[group][name][begin:end]
    ]
