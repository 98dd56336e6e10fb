"""Hugging Face `datasets`: a folder from `save_to_disk`, or a name on the hub as `hf:NAME`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thresher.data.labels import class_names
from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.data.sources.optional import import_optional
from thresher.errors import InvalidValueError

ROWS_PER_CHUNK = 10_000
MARKERS = ("dataset_dict.json", "dataset_info.json")


class HuggingFace(encoded.EncodedSource):
    """A data set with one image column and one label column.

    `hf:NAME` and `hf:NAME:CONFIG` are loaded by the `datasets` library into its own cache.
    """

    def __init__(self, where: str, name: str | None = None) -> None:
        self.where = str(where)
        splits = self._load()
        first = next(iter(splits.values()))
        self.image_column, self.label_column = _columns(first, self.where)
        self.name = name or Path(self.where.removeprefix("hf:").split(":")[0]).name
        names = getattr(first.features[self.label_column], "names", None)
        if names is None:
            names = class_names(
                None,
                lambda: [label for part in splits.values() for label in part[self.label_column]],
                self.where,
            )
        self.classes = list(names)
        self._rows = {split: len(part) for split, part in splits.items()}
        self._fingerprints = [str(getattr(part, "_fingerprint", "")) for part in splits.values()]
        self.image_shape = encoded.common_shape(
            self._file(part[n])
            for part in splits.values()
            for n in encoded.spread(range(len(part)))
        )

    @staticmethod
    def matches(where: str) -> bool:
        return where.startswith("hf:") or any((Path(where) / m).is_file() for m in MARKERS)

    def key(self) -> str:
        return f"huggingface {self.where}, {self._rows}, {' '.join(self._fingerprints)}"

    def chunks(self) -> list[str]:
        return encoded.row_chunks(self._rows, ROWS_PER_CHUNK)

    def read(self, chunk: str) -> Iterator[Block]:
        split, begin = chunk.split(":")
        part = self._load()[split]
        end = min(int(begin) + ROWS_PER_CHUNK, len(part))
        width = max(5, len(str(len(part))))

        def samples() -> Iterator[encoded.EncodedSample]:
            for n in range(int(begin), end):
                row = part[n]
                id = str(row["id"]) if "id" in row else f"{split}/{n:0{width}d}"
                yield id, row[self.label_column], split, self._file(row)

        yield from encoded.in_blocks(samples())

    def _load(self) -> dict[str, Any]:
        """Load the splits by their usual names, with images as encoded files."""
        datasets = import_optional("datasets", "huggingface")
        try:
            # Its progress bars would mix with ours.
            with contextlib.suppress(AttributeError):
                datasets.disable_progress_bars()
            if self.where.startswith("hf:"):
                loaded = datasets.load_dataset(*self.where.removeprefix("hf:").split(":"))
            else:
                loaded = datasets.load_from_disk(self.where)
        except Exception as error:  # the library raises many types
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InvalidValueError(f"datasets cannot load {self.where} ({first})") from None
        parts = loaded.items() if hasattr(loaded, "items") else [("train", loaded)]
        splits = {}
        for split, part in parts:
            image, _ = _columns(part, self.where)
            plain = part.cast_column(image, datasets.Image(decode=False))
            usual = encoded.usual_split(split)
            splits[split if usual in splits else usual] = plain
        return splits

    def _file(self, row: dict[str, Any]) -> bytes:
        image = row[self.image_column]
        if image.get("bytes") is not None:
            return bytes(image["bytes"])
        return Path(image["path"]).read_bytes()


def _columns(part: Any, where: str) -> tuple[str, str]:
    kinds = {name: type(feature).__name__ for name, feature in part.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name in kinds if name in ("label", "labels", "fine_label")]
    if not images or not labels:
        raise InvalidValueError(
            f"{where} has no image and label column (it has {', '.join(kinds)})",
            "cast them to datasets.Image and datasets.ClassLabel",
        )
    return images[0], labels[0]
