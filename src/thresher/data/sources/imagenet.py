"""ImageNet (ILSVRC 2012) as it is distributed: a tar of tars, a tar of images and a list of labels.

Ids are those of the usual folders, `train/n01440764/…` and `val/n01440764/…`, so that a selection
made on either fits the other. Nothing is unpacked to disk.
"""

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.cifar import TAR_ERRORS
from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.read_errors import unreadable

TRAIN = "ILSVRC2012_img_train.tar"
VALIDATION = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Member:
    """A file in a tar."""

    name: str
    begin: int
    size: int


class ImageNet(encoded.EncodedSource):
    """A folder with the archives of ImageNet; the validation images are a test split of packs."""

    image_shape = None
    shape_is_guess = False

    def __init__(self, where: Path | str, name: str | None = None) -> None:
        self.root = Path(where)
        if not (self.root / TRAIN).is_file():
            raise NotFoundError(f"{self.root} has no {TRAIN}", "check the path")
        self.name = name or "imagenet"
        self.train = [m for m in _members(self.root / TRAIN) if m.name.endswith(".tar")]
        self.classes = sorted(PurePosixPath(member.name).stem for member in self.train)
        if not self.classes:
            raise InvalidValueError(f"{self.root / TRAIN} holds no tar of a class", "get it again")
        self.validation: list[Member] = []
        self.labels: list[int] = []
        if (self.root / VALIDATION).is_file():
            self.validation = [m for m in _members(self.root / VALIDATION) if m.size]
            self.validation.sort(key=lambda member: member.name)
            self.labels = self._validation_labels()

    @staticmethod
    def matches(where: str) -> bool:
        return (Path(where) / TRAIN).is_file()

    def key(self) -> str:
        files = [self.root / file for file in (TRAIN, VALIDATION, DEVKIT) if self._has(file)]
        return f"imagenet archives, {encoded.describe_files(files)}"

    def chunks(self) -> list[str]:
        ranges = encoded.ranges([member.size for member in self.validation])
        return [f"train:{n}" for n in range(len(self.train))] + [f"val:{r}" for r in ranges]

    def read(self, chunk: str) -> Iterator[Block]:
        split, _, where = chunk.partition(":")
        samples = self._train(int(where)) if split == "train" else self._val(where)
        yield from encoded.in_blocks(samples)

    def _has(self, file: str) -> bool:
        return (self.root / file).is_file()

    def _train(self, number: int) -> Iterator[encoded.EncodedSample]:
        member = self.train[number]
        name = PurePosixPath(member.name).stem
        label = self.classes.index(name)
        with open(self.root / TRAIN, "rb") as file:
            file.seek(member.begin)
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    for image in tar:
                        content = tar.extractfile(image)
                        if content is not None:
                            id = f"train/{name}/{PurePosixPath(image.name).name}"
                            yield id, label, "train", content.read()
            except (*TAR_ERRORS, OSError) as error:
                raise _damaged(self.root / TRAIN, error) from None

    def _val(self, where: str) -> Iterator[encoded.EncodedSample]:
        begin, end = map(int, where.split(":"))
        with open(self.root / VALIDATION, "rb") as file:
            for n in range(begin, end):
                member, label = self.validation[n], self.labels[n]
                file.seek(member.begin)
                name = PurePosixPath(member.name).name
                id = f"val/{self.classes[label]}/{name}"
                yield id, label, "validation", file.read(member.size)

    def _validation_labels(self) -> list[int]:
        """Return the labels of the validation images, which the development kit lists by number."""
        if not self._has(DEVKIT):
            raise NotFoundError(
                f"the labels of {VALIDATION} are in {DEVKIT}, which is not in {self.root}",
                "put it there, or move the validation images away",
            )
        truth, meta = _devkit_files(self.root / DEVKIT)
        try:
            names = _class_names(meta)
        except Exception as error:  # scipy raises many types
            raise _damaged(self.root / DEVKIT, error) from None
        try:
            number_of = {name: n for n, name in enumerate(self.classes)}
            labels = [number_of[names[int(line)]] for line in truth.split()]
        except (KeyError, ValueError) as error:
            raise InvalidValueError(
                f"{self.root / DEVKIT} does not fit {TRAIN}: {error} is unknown", "get both again"
            ) from None
        if len(labels) != len(self.validation):
            raise InvalidValueError(
                f"{DEVKIT} has {len(labels)} labels, {VALIDATION} {len(self.validation)} images",
                "get both again",
            )
        return labels


def _members(tar: Path) -> list[Member]:
    """Return the files of a tar, from their headers."""
    try:
        with tarfile.open(tar, "r:") as archive:
            files = [Member(m.name, m.offset_data, m.size) for m in archive if m.isfile()]
    except (*TAR_ERRORS, OSError) as error:
        raise _damaged(tar, error) from None
    end = max((member.begin + member.size for member in files), default=0)
    if end > tar.stat().st_size:
        raise InvalidValueError(f"{tar} is truncated", "get it again")
    return files


def _devkit_files(devkit: Path) -> tuple[str, bytes]:
    """Return the class number of each validation image, one per line, and `meta.mat`."""
    wanted: dict[str, bytes] = {}
    try:
        with tarfile.open(devkit, "r:gz") as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None:
                    wanted[PurePosixPath(member.name).name] = content.read()
        return wanted[GROUND_TRUTH].decode("ascii"), wanted["meta.mat"]
    except KeyError as error:
        raise InvalidValueError(f"{devkit} has no {error.args[0]}", "get it again") from None
    except (*TAR_ERRORS, OSError, UnicodeDecodeError) as error:
        raise _damaged(devkit, error) from None


def _class_names(meta: bytes) -> dict[int, str]:
    """Return the names of the classes (n01440764) by their number in the development kit."""
    from scipy.io import loadmat

    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    return {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets}


def _damaged(file: Path, error: Exception) -> ThresherError:
    wrong = InvalidValueError(f"{file} is truncated or damaged ({error})", "get it again")
    return unreadable(file, error) or wrong
