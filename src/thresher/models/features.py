"""Penultimate features: the folder that `embed` writes and `select` reads.

A folder holds `features.npy` (n, d) float16 or float32 and `probabilities.npy` (n, classes)
float32, both memory-mapped on reading; `index.parquet` with `id` and `label`; and `features.json`
with the pack, the network and the settings. Opening features does not load torch.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thresher.data.digest import order_digest
from thresher.data.ids import id_array, read_id_list
from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import Inside, as_path, read_json
from thresher.read_errors import unreadable

FORMAT = 1
_ROWS = 65536
_FIXED_LIST = pa.list_(pa.float32(), 1).id


@dataclass(frozen=True)
class FeaturePaths:
    """The file names in a folder of features."""

    root: Path
    array = Inside("features.npy")
    probabilities = Inside("probabilities.npy")
    index = Inside("index.parquet")
    meta = Inside("features.json")

    @property
    def staging(self) -> "FeaturePaths":
        """The folder that features are written to until they are complete."""
        return FeaturePaths(self.root.with_name(f".{self.root.name}.partial"))


@dataclass(frozen=True, kw_only=True)
class FeaturesMeta:
    """The content of `features.json`; None where features from elsewhere do not say."""

    format: int | None = None
    pack: str | None = None
    """Name of the pack."""
    fingerprint: str | None = None
    """Fingerprint of the pack."""
    split: str | None = None
    samples: int | None = None
    order: str | None = None
    """Digest of the ids in the order of the rows."""
    model: str | None = None
    """Name of the network in the model registry."""
    run: str | None = None
    """Training run that the network comes from."""
    weights: str | None = None
    """File of weights, if the network does not come from a run."""
    sha256: str | None = None
    """Checksum of the file of weights."""
    model_source: str | None = None
    """Checksum of the file of a network that is given as package.module:function."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop: int | None = None
    image_size: int | None = None
    resample: str = "bilinear"
    features_from: str | None = None
    """Layer that the user named, whose output are the features, or "output"."""
    pooling: str | None = None
    """How a network of transformers made one vector per image."""
    probabilities: bool = False
    dtype: str | None = None
    batch_size: int | None = None
    dimension: int | None = None
    workers: int | None = None
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    """File that features from elsewhere were read from."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "FeaturesMeta":
        known = {field.name for field in dataclasses.fields(cls)}
        content: Any = ((k, tuple(v) if isinstance(v, list) else v) for k, v in values.items())
        return cls(**{key: value for key, value in content if key in known})

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self).items()
        return {k: v for k, v in values if v is not None or k in ("crop", "image_size")}


@dataclass(frozen=True)
class Features:
    """Features of n samples, one row each, in the order of `ids`.

    Example:
        >>> np.save("pixels.npy", np.zeros((3, 64), np.float32))
        >>> features = Features.from_array("pixels.npy", ids=["a", "b", "c"])
        >>> features.array.shape, features.ids
        ((3, 64), ['a', 'b', 'c'])
    """

    array: np.ndarray
    """(n, d) float16 or float32, often a read-only memory map."""
    index: pa.Table
    """Columns `id` and, if known, `label`."""
    probabilities: np.ndarray | None = None
    """(n, classes) float32; None if the network has no head for these classes."""
    meta: FeaturesMeta = FeaturesMeta()
    """Where the features come from."""
    path: Path | None = None
    """The folder or file that they were opened from."""

    def __len__(self) -> int:
        return len(self.array)

    @cached_property
    def ids(self) -> list[str]:
        """The n sample ids."""
        return self.index.column("id").to_pylist()

    @cached_property
    def labels(self) -> np.ndarray | None:
        """(n,) int64, or None if the file holds none.

        Raises:
            InvalidValueError: Some are missing, or are names.
        """
        if "label" not in self.index.column_names:
            return None
        column = self.index.column("label")
        with contextlib.suppress(pa.ArrowInvalid):  # parts of numbers
            if _is_number(column.type) and not column.null_count:
                return np.asarray(column.cast(pa.int64()).to_numpy())
        raise InvalidValueError(
            f'the column "label" of {self.path} must hold the number of a class in each row',
            "`numpy.unique(labels, return_inverse=True)` numbers names",
        )

    @cached_property
    def accuracy(self) -> float | None:
        """Share of the samples that the network classifies as labelled; None if it has no head."""
        if self.probabilities is None or self.labels is None or not len(self):
            return None
        # In parts, because numpy copies a memory map that it may not write to.
        begins = range(0, len(self), _ROWS)
        parts = [self.probabilities[begin : begin + _ROWS].argmax(1) for begin in begins]
        return float((np.concatenate(parts) == self.labels).mean())

    @classmethod
    def open(cls, path: str | Path) -> "Features":
        """Open a folder that `thresher embed` wrote, or a `.npy` or `.parquet` from elsewhere."""
        path = as_path(path, "path")
        if path.suffix in (".npy", ".parquet"):
            return cls.from_array(path)
        paths = FeaturePaths(path)
        if path.exists() and not paths.meta.exists():
            raise NotFoundError(
                f"{path} holds no features: there is no features.json in it",
                "make them with `thresher embed`",
            )
        values = read_json(paths.meta, "folder of features")
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise InvalidValueError(
                f"{path} does not hold features of format {FORMAT}", "embed again"
            )
        probabilities = _map(paths.probabilities) if paths.probabilities.exists() else None
        meta = FeaturesMeta.from_json(values)
        return cls(_map(paths.array), _table(paths.index), probabilities, meta, path)._checked()

    @classmethod
    def from_array(cls, path: str | Path, ids: Sequence[str] | None = None) -> "Features":
        """Open features that were computed elsewhere.

        Args:
            path: `X.npy` (n, d), or `X.parquet` with a column `id`, optionally `label`, and either
                one column of lists or a number column per feature.
            ids: Ids of the rows of a `.npy` file; by default read from `X.ids.txt`, one per line.
        """
        path = as_path(path, "path")
        if path.suffix == ".parquet":
            return _from_parquet(path)._checked()
        if ids is None:
            beside = ids_beside(path)
            if path.exists() and not beside.exists():
                raise NotFoundError(
                    f"the features in {path} have no ids", f"write them, one per line, to {beside}"
                )
            ids = read_id_list(beside) if path.exists() else []
        index = pa.table({"id": id_array(ids)})
        return cls(_map(path), index, None, FeaturesMeta(source=str(path)), path)._checked()

    def _checked(self) -> "Features":
        path, array = self.path, self.array
        if array.ndim != 2 or array.dtype.kind != "f":
            raise InvalidValueError(
                f"{path} holds an array of {array.dtype} with the shape {array.shape}",
                "features are floats, one row per sample",
            )
        if "id" not in self.index.column_names:
            raise InvalidValueError(f"the index of {path} has no ids", "embed again")
        if self.meta.samples not in (None, len(array)) or self.meta.dimension not in (
            None,
            array.shape[1],
        ):
            raise InvalidValueError(
                f"features.json of {path} describes {self.meta.samples} × {self.meta.dimension} "
                f"features, but there are {len(array)} × {array.shape[1]}",
                "embed again",
            )
        if len(self.index) != len(array):
            raise InvalidValueError(
                f"{path} has {len(array):,} rows of features but {len(self.index):,} ids",
                "there must be one id per row",
            )
        if len(set(self.ids)) != len(self.ids):
            raise InvalidValueError(f"some ids in {path} appear twice", "ids must be unique")
        if self.meta.order not in (None, order_digest(self.ids)):
            raise InvalidValueError(
                f"the ids in index.parquet of {path} are not those of the features' rows, in their "
                "order: another program changed the file",
                "embed again",
            )
        return self


def ids_beside(path: Path) -> Path:
    """Return the file that lists the ids of features in a `.npy` file."""
    return path.with_suffix(".ids.txt")


@contextlib.contextmanager
def _readable(path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NotFoundError(f"there are no features at {path}", "check the path") from None
    except (ValueError, OSError, EOFError) as error:  # Arrow's errors are ValueErrors
        reason = getattr(error, "strerror", None) or error
        wrong = InvalidValueError(f"{path} is not a complete {kind} ({reason})", "write it again")
        raise unreadable(path, error) or wrong from None


def _map(path: Path) -> np.ndarray:
    with _readable(path, ".npy array"):
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _table(path: Path) -> pa.Table:
    with _readable(path, "Parquet file"):
        return pq.read_table(path)


def _from_parquet(path: Path) -> Features:
    table = _table(path)
    if "id" not in table.column_names:
        raise InvalidValueError(f'{path} has no column "id"', "name the samples by their ids")
    index = table.select([name for name in ("id", "label") if name in table.column_names])
    index = index.set_column(0, "id", index["id"].cast(pa.string()))
    # pandas stores the row numbers of a table that was filtered or shuffled as a column, too.
    names = [name for name in table.column_names if not re.fullmatch(r"__index_level_\d+__", name)]
    columns = [name for name in names if name not in ("id", "label")]
    lists = [name for name in columns if _is_list(table.schema.field(name).type)]
    if len(lists) == 1:
        try:
            array = _stacked(table[lists[0]])
        except (ValueError, TypeError):
            raise InvalidValueError(
                f"the lists in the column {lists[0]} of {path} are not numbers of one length"
            ) from None
    elif columns and not lists:
        try:
            array = np.empty((len(table), len(columns)), np.float32)
            for n, name in enumerate(columns):
                array[:, n] = table[name].to_numpy()
        except (ValueError, TypeError):
            raise InvalidValueError(f"not all feature columns of {path} hold numbers") from None
    else:
        raise InvalidValueError(
            f"{path} has {len(lists)} columns of lists",
            "give features as one column of lists, or as a number column each",
        )
    return Features(array, index, None, FeaturesMeta(source=str(path)), path)


def _stacked(column: pa.ChunkedArray) -> np.ndarray:
    """Return lists as (n, d) float32; raise ValueError or TypeError if they cannot be stacked."""
    import pyarrow.compute as pc

    (width,) = pc.unique(pc.list_value_length(column)).to_pylist()
    array = np.empty((len(column), width), np.float32)  # a missing list has the length None
    begin = 0
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        array[begin : begin + len(chunk)] = values.reshape(len(chunk), width)
        begin += len(chunk)
    return array


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or kind.id == _FIXED_LIST
