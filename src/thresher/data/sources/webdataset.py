"""WebDataset: tar files whose members share a key, such as `0001.jpg` and `0001.cls`."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from thresher.data.sources.base import Block
from thresher.data.sources.cifar import CUT
from thresher.data.sources.description import description_in
from thresher.data.sources.encoded import (
    EncodedSource,
    class_names,
    common_shape,
    in_blocks,
    split_of,
)
from thresher.errors import ThresherError

IMAGES = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff", "gif"])
LABELS = frozenset(("cls", "json"))
PROBES_PER_TAR = 8


class WebDataset(EncodedSource):
    """A tar, or a folder of them; the split is read from a tar's name.

    The label is the `.cls` member, or `label` in the `.json` one, which may also give `id` and
    `split`. Without class names all labels are read once beforehand, to know how many there are.
    """

    def __init__(self, path: Path, name: str | None = None, classes: Path | None = None) -> None:
        path = Path(path)
        self.root = path if path.is_dir() else path.parent
        self.tars = [path] if path.is_file() else sorted(path.rglob("*.tar*"))
        if not self.tars:
            raise ThresherError(f"{path} holds no .tar file", "check the path")
        described = description_in(self.root)
        self.name = name or (described.name if described else path.resolve().stem)
        if described is not None:
            self.classes = described.classes
            self.image_shape, self.shape_is_guess = described.image_shape, False
        else:
            self.classes = class_names(classes, self._labels)
            self.image_shape = common_shape(self._probes())

    def key(self) -> str:
        sizes = ",".join(str(tar.stat().st_size) for tar in self.tars)
        return f"webdataset {self.root.name}, {len(self.tars)} tars of {sizes} bytes"

    def chunks(self) -> list[str]:
        return [tar.relative_to(self.root).as_posix() for tar in self.tars]

    def read(self, chunk: str) -> Iterator[Block]:
        broken: list[str] = []

        def samples() -> Iterator[tuple[str, int, str, bytes]]:
            tar = self.root / chunk
            for key, parts in grouped(tar, IMAGES | LABELS):
                id, label, split = _meaning(key, parts, tar, chunk)
                image = next((data for kind, data in parts.items() if kind in IMAGES), None)
                if image is None:
                    broken.append(id)
                else:
                    yield id, label, split, image

        yield from in_blocks(samples())
        if broken:
            yield Block([], [], [], [], broken=broken)

    def _labels(self) -> Iterator[int]:
        for tar in self.tars:
            for key, parts in grouped(tar, LABELS):
                yield _meaning(key, parts, tar, tar.name)[1]

    def _probes(self) -> Iterator[bytes]:
        for tar in self.tars:
            for n, (_, parts) in enumerate(grouped(tar, IMAGES)):
                if n >= PROBES_PER_TAR:
                    break
                yield from parts.values()


def grouped(tar: Path, kinds: frozenset[str]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Samples of a tar, in order: key and the members of these kinds by their ending."""
    key = ""
    parts: dict[str, bytes] = {}
    try:
        with tarfile.open(tar, "r|*") as members:
            for member in members:
                path = PurePosixPath(member.name)
                stem, _, kind = path.name.partition(".")
                here = (path.parent / stem).as_posix()
                if not member.isfile() or not stem:
                    continue
                if here != key and parts:
                    yield key, parts
                    parts = {}
                key = here
                if kind.lower() in kinds:
                    content = members.extractfile(member)
                    parts[kind.lower()] = content.read() if content else b""
            if parts:
                yield key, parts
    except FileNotFoundError:
        raise ThresherError(f"there is no file {tar}", "check the path") from None
    except CUT as error:
        raise ThresherError(f"{tar} is cut short or damaged ({error})", "get it again") from None


def _meaning(key: str, parts: dict[str, bytes], tar: Path, chunk: str) -> tuple[str, int, str]:
    """id, label and split of a sample. Keys often begin anew in each tar: its name goes before."""
    try:
        said = json.loads(parts["json"]) if "json" in parts else {}
        label = int(parts["cls"]) if "cls" in parts else int(said["label"])
        stem = PurePosixPath(chunk).name.partition(".")[0]
        return str(said.get("id", f"{stem}/{key}")), label, str(said.get("split", split_of(tar)))
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ThresherError(
            f'{tar}: the sample "{key}" has no label',
            "each needs a .cls member with a number, or a .json one with `label`",
        ) from None
