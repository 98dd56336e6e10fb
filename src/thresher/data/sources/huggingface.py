"""Hugging Face `datasets`: a folder from `save_to_disk`, or a name on the hub as `hf:NAME`."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.ids import id_text
from thresher.data.labels import class_names, label_columns
from thresher.data.sources import encoded
from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError, first_line
from thresher.plugins import import_optional
from thresher.read_errors import unreadable

ROWS_PER_CHUNK = 10_000
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Tables beside images, in which the library looks for everything but the images."""
MARKERS = ("dataset_dict.json", "dataset_info.json")


class HuggingFace(encoded.EncodedSource):
    """A data set with one image column and one label column, of numbers or of class names.

    `hf:NAME` and `hf:NAME:CONFIG` are loaded by the `datasets` library into its own cache.
    """

    def __init__(self, where: str, name: str | None = None) -> None:
        self.where = str(where)
        if self.where.startswith("hf:~/"):
            self.where = f"hf:{Path(self.where[3:]).expanduser()}"
        splits = self._load()
        columns = {_columns(part, self.where) for part in splits.values()}
        if len(columns) > 1:
            raise InvalidValueError(
                f"the splits of {self.where} have different columns of images or labels",
                "rename them",
            )
        ((self.image_column, self.label_column),) = columns
        for part in splits.values():
            _check_labels(part, self.label_column, self.where)
        self.name = name or Path(self.where.removeprefix("hf:").split(":")[0]).name
        self.classes, self._numbers = _merged_classes(splits, self.label_column)
        self._by_name: dict[str, int] = {}
        kinds = [part.features[self.label_column] for part in splits.values()]
        if all(getattr(kind, "dtype", "") in ("string", "large_string") for kind in kinds):
            texts = {text for part in splits.values() for text in part.unique(self.label_column)}
            self.classes = sorted(texts)
            self._by_name = {text: number for number, text in enumerate(self.classes)}
        if not self.classes:
            self.classes = class_names(
                None,
                lambda: [label for part in splits.values() for label in part[self.label_column]],
                self.where,
            )
        self._rows = {split: len(part) for split, part in splits.items()}
        self._fingerprints = [str(getattr(part, "_fingerprint", "")) for part in splits.values()]
        probes = (
            self._file(part[n])
            for part in splits.values()
            for n in encoded.spread(range(len(part)))
        )
        self.image_shape = encoded.common_shape(data for data in probes if data is not None)

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
                id = id_text(row["id"]) if "id" in row else f"{split}/{n:0{width}d}"
                yield id, self._label(row, split), split, self._file(row)

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
            reason = first_line(error)
            raise InvalidValueError(f"datasets cannot load {self.where} ({reason})") from None
        parts = loaded.items() if hasattr(loaded, "items") else [("train", loaded)]
        splits = {}
        for split, part in parts:
            image, _ = _columns(part, self.where)
            # A format that was saved with it may print ids otherwise, or hide their column.
            if part.format["type"] is not None or part.format["columns"] != part.column_names:
                part = part.with_format(None)
            plain = part.cast_column(image, datasets.Image(decode=False))
            usual = encoded.usual_split(split)
            taken = usual in splits or (usual != split and usual in dict(parts))
            splits[split if taken else usual] = plain
        return splits

    def _label(self, row: dict[str, Any], split: str) -> Any:
        label, numbers = row[self.label_column], self._numbers.get(split, [])
        if self._by_name:
            return self._by_name[label]
        return numbers[label] if label in range(len(numbers)) else label

    def _file(self, row: dict[str, Any]) -> bytes | None:
        """Return the image file; None if the row has none, or if it cannot be read."""
        image = row[self.image_column] or {}
        if image.get("bytes") is not None:
            return bytes(image["bytes"])
        try:
            return Path(image["path"]).read_bytes()
        except (KeyError, TypeError):
            return None
        except OSError as error:
            if refused := unreadable(image["path"], error):
                raise refused from None
            return None


def _merged_classes(splits: dict[str, Any], column: str) -> tuple[list[str], dict[str, list[int]]]:
    """Return the class names of all splits, and the number among them of each split's own classes.

    Splits that were made one by one may number the same classes in another way.
    """
    features = {split: part.features.get(column) for split, part in splits.items()}
    names = {split: list(getattr(kind, "names", None) or []) for split, kind in features.items()}
    first = sorted(names, key=lambda split: split != "train")
    classes = list(dict.fromkeys(name for split in first for name in names[split]))
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, {split: [numbers[name] for name in own] for split, own in names.items()}


def _columns(part: Any, where: str) -> tuple[str, str]:
    images = [name for name, kind in part.features.items() if type(kind).__name__ == "Image"]
    labels = label_columns(part.features)
    if not images or not labels:
        what = "images" if not images else "labels"
        fix = "cast that of the images to datasets.Image" if not images else _name_labels(where)
        raise InvalidValueError(
            f"{where} has no column of {what} (it has {', '.join(part.features)})", fix
        )
    return images[0], labels[0]


def _name_labels(where: str) -> str:
    """Return what to do where no column is known to hold the labels."""
    folder = Path(where.removeprefix("hf:"))
    named = 'give the labels a column "label"'
    if not where.startswith("hf:") or not folder.is_dir():
        return f"{named}, or cast theirs to datasets.ClassLabel"
    for name in METADATA:
        if any(any(folder.glob(f"{below}{name}")) for below in ("", "*/")):
            return f"{named} in {name}"
    if any(folder.rglob("*.parquet")):
        return named
    return f'list them in {METADATA[0]}, with the columns "file_name" and "label"'


def _check_labels(part: Any, column: str, where: str) -> None:
    """Refuse a row without a label; reads that column only."""
    labels = part.select_columns([column]).with_format("arrow")[:].column(column)
    if labels.null_count:
        row = int(np.flatnonzero(labels.is_null())[0])
        raise InvalidValueError(
            f"{_place(part, row, where)} has no {column}", "label it, or remove the row"
        )


def _place(part: Any, row: int, where: str) -> str:
    """Return a row of a split for messages: the file and its row there, if they are known."""
    begin, found = 0, None
    files = _files(part, where)
    for file, rows in files.items():
        if begin <= row < begin + rows:
            found = f"row {row - begin} of {file}"
        begin += rows
    if found is None or begin != len(part):
        found = f'row {row} of the split "{part.split or "train"}" of {where}'
    return f"{found}, counted from 0,"


def _files(part: Any, where: str) -> dict[str, int]:
    """Return the files on this machine that a split was read from, with their rows."""
    try:
        if not where.startswith("hf:"):
            names = [str(file["filename"]) for file in part.cache_files]
            tables = {name: pa.ipc.open_stream(pa.memory_map(name)).read_all() for name in names}
            return {name: table.num_rows for name, table in tables.items()}
        datasets = import_optional("datasets", "huggingface")
        builder = datasets.load_dataset_builder(*where.removeprefix("hf:").split(":"))
        names = [str(name) for name in builder.config.data_files[str(part.split)]]
        return {name: pq.read_metadata(name).num_rows for name in names}
    except Exception:  # on the hub, of another format, or no longer there
        return {}
