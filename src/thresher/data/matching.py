"""Match the samples of any data set with the rows of a selection.

A data set is matched by its ids, or by the paths of its files. If it has only labels, it must be in
pack order, and its labels must show that it is.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa

from thresher.data.ids import id_text, rows_by_id
from thresher.data.labels import label_columns
from thresher.data.sources.encoded import SPLITS
from thresher.data.sources.folder import exported_ids
from thresher.errors import InvalidTypeError, InvalidValueError, counted

logger = logging.getLogger(__name__)

_GIVE_IDS = "give the data set an attribute `ids`, or make the selection again"
_WITHOUT_IDS = {
    "DataFrame": "give the data set that reads its images; rows of a table are kept with "
    "`frame[frame[COLUMN].map(selection.keeps)]`, where COLUMN has the ids",
    "ConcatDataset": "apply the selection to the data sets in it that have `ids`, and concatenate "
    "the results",
}
"""What to do instead, by the name of a type."""
EXPORT_DEPTH = 3
"""Folders above a file of an export: its class, its split and the export."""
ORDER_FIX = (
    'give it an attribute `ids`, or `order="pack"` if it holds the training samples in pack order'
)


def match_samples(
    dataset: Any,
    ids: Sequence[str],
    labels: np.ndarray,
    order: str | None = None,
    in_pack_order: bool = True,
) -> np.ndarray:
    """Return the row in `ids` of each sample of `dataset`, (m,) int64.

    Args:
        dataset: A torch or Hugging Face data set.
        ids: (n,) ids of the training samples.
        labels: (n,) their labels.
        order: "pack" if the data set holds all samples in pack order, which is then not verified.
        in_pack_order: Whether `ids` are in pack order; if not, nothing is matched by position.

    Raises:
        InvalidValueError: The data set holds other samples, or its order cannot be verified.
    """
    if order not in (None, "pack"):
        raise InvalidValueError(f'order must be "pack" or None, got {order!r}', "", "order")
    _check_positions(dataset)
    if not len(dataset):
        raise InvalidValueError(
            "the data set is empty, so there is nothing to select from",
            "check how its samples were chosen",
        )
    if order == "pack":
        _check_length(dataset, ids)
        check_row_order(in_pack_order, _GIVE_IDS)
        own = _labels(dataset)
        if own is not None and (own != labels).any():
            logger.warning(
                "%s from the selection's; is the data set in pack order?",
                counted(int((own != labels).sum()), "label differs", "labels differ"),
            )
        return np.arange(len(ids))
    dataset, picked = _without_subsets(dataset)
    own_ids = _ids(dataset)
    if own_ids is not None:
        _check_one_each(dataset, len(own_ids), "ids")
        own_ids = [own_ids[position] for position in picked]
        return _checked(rows_by_id(own_ids, ids), own_ids, "ids", ids)
    paths = _paths(dataset)
    if paths is not None:
        _check_one_each(dataset, len(paths), "paths")
        return _rows_by_path(paths, picked, getattr(dataset, "root", None), ids)
    kind = type(dataset).__name__
    if kind in _WITHOUT_IDS:
        what = f"dataset must have `ids`, got a {kind} without them"
        raise InvalidTypeError(what, _WITHOUT_IDS[kind], "dataset")
    _check_length(dataset, ids)
    check_row_order(in_pack_order, _GIVE_IDS)
    _check_labels(dataset, labels)
    return np.asarray(picked, np.int64)


def positions_of_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the position in the data set of each row of a selection, (count,) int64, or -1.

    `rows` is what `match_samples` returned.
    """
    if len(np.unique(rows)) != len(rows):
        raise InvalidValueError("the data set contains a sample twice", "remove the copies")
    positions = np.full(count, -1, np.int64)
    positions[rows] = np.arange(len(rows))
    return positions


def select_rows(dataset: Any, rows: list[int]) -> Any:
    """Return these rows of a Hugging Face `Dataset`."""
    if not hasattr(dataset, "select"):
        raise InvalidTypeError(
            f"dataset must be a Hugging Face Dataset, got {type(dataset).__name__}",
            "use `apply`, which returns a torch Subset of any map-style data set",
            "dataset",
        )
    return dataset.select(rows)


def check_row_order(in_pack_order: bool, fix: str) -> None:
    """Raise if the rows of a selection are not in pack order."""
    if not in_pack_order:
        raise InvalidValueError(
            "the rows of the selection are no longer in pack order: another program changed its "
            "table",
            fix,
        )


def webdataset_ids(sample: Mapping[str, Any]) -> list[str]:
    """Return the ids that a pack may give to a sample of a WebDataset, decoded or not.

    Where tars in several folders have one name, ids begin with the folder; such ids come first.
    """
    fields = sample.get("json")
    if isinstance(fields, bytes | str):
        fields = json.loads(fields)
    if isinstance(fields, Mapping) and fields.get("id") is not None:
        return [str(fields["id"])]
    try:
        *folders, name = PurePosixPath(str(sample["__url__"])).parts
        key = PurePosixPath(str(sample["__key__"]))  # `tar cf x.tar .` writes ./0001.jpg
        own = [name.partition(".")[0], key.as_posix()]
        return ["/".join([*folders[n:], *own]) for n in range(len(folders) + 1)]
    except KeyError as error:
        raise InvalidValueError(
            f"the sample has no {error.args[0]}", "give an id, or a sample of a WebDataset"
        ) from None


def column(dataset: Any, name: str) -> Any:
    """Return a column of a Hugging Face data set without its transform, which may drop it."""
    return dataset.with_format(None)[name] if hasattr(dataset, "with_format") else dataset[name]


def label_column(dataset: Any) -> str | None:
    """Return the column of a Hugging Face data set that holds the labels, as a pack takes it."""
    features = getattr(dataset, "features", None)
    kinds = features if isinstance(features, Mapping) else {}
    return next(iter(label_columns({name: kinds.get(name) for name in _columns(dataset)})), None)


def _without_subsets(dataset: Any) -> tuple[Any, list[int]]:
    """Return the data set inside torch's Subsets, and the positions in it that they pick."""
    picked = np.arange(len(dataset))
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        indices = np.asarray(dataset.indices)
        if indices.shape != (len(dataset),) or indices.dtype.kind not in "iu":
            break  # a wrapper that means something else by this name
        picked = indices[picked]
        dataset = dataset.dataset
        _check_positions(dataset)
    return dataset, np.arange(len(dataset))[picked].tolist()


def _ids(dataset: Any) -> list[str] | None:
    values = getattr(dataset, "ids", None)
    if values is None and "id" in _columns(dataset):
        values = column(dataset, "id")
    if values is None or callable(values):
        return None
    if isinstance(values, set | frozenset):
        raise InvalidValueError(
            "the `ids` of the data set are a set, which has no order", "give a list of them"
        )
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = values.to_pylist()
    if hasattr(values, "tolist"):  # an element of a tensor is a tensor
        values = values.tolist()
    return [id_text(value) for value in values]


def _paths(dataset: Any) -> list[PurePath] | None:
    """Return the files of torchvision's ImageFolder and of data sets with the same attributes."""
    for name in ("samples", "imgs"):
        # Arrays and tensors of these names hold pixels.
        samples = getattr(dataset, name, None)
        with contextlib.suppress(TypeError, ValueError):
            if isinstance(samples, list | tuple) and samples:
                return [PurePath(path) for path, _ in samples]
    return None


def _labels(dataset: Any) -> np.ndarray | None:
    """Return the labels as (n,) integers; None if the data set has none that can be compared."""
    values = getattr(dataset, "targets", None)
    if values is None:
        values = getattr(dataset, "labels", None)
    if values is None and getattr(dataset, "tensors", None):  # a torch TensorDataset
        values = dataset.tensors[-1]
    if values is None:
        name = label_column(dataset)
        values = None if name is None else column(dataset, name)
    if values is None or callable(values):
        return None
    try:
        array = np.asarray(values if hasattr(values, "__array__") else list(values))
    except (TypeError, ValueError):
        return None
    return array if array.shape == (len(dataset),) and array.dtype.kind in "iu" else None


def _columns(dataset: Any) -> list[str]:
    """Return the column names of a Hugging Face data set."""
    names = getattr(dataset, "column_names", None)
    return names if isinstance(names, list) else []


def _rows_by_path(
    paths: list[PurePath], picked: list[int], root: Any, ids: Sequence[str]
) -> np.ndarray:
    """Match picked paths by what is below the root, with and without the folder of the split.

    Files of an export have the ids that its index gives them: a new label moved some of them.
    """
    exported = _exported_ids([paths[position] for position in picked])
    if exported is not None:
        names = [str(paths[position]) for position in picked]
        return _checked(rows_by_id(exported, ids), names, "paths", ids)
    first = np.full(len(picked), -1)
    for own, known in _names_of_paths(paths, root, ids):
        rows = rows_by_id([own[position] for position in picked], known)
        if (rows >= 0).all():
            return rows
        if (rows >= 0).sum() > (first >= 0).sum():
            first = rows
    return _checked(first, [str(paths[position]) for position in picked], "paths", ids)


def _exported_ids(paths: list[PurePath]) -> list[str] | None:
    """Return the ids of files in the folder of an export, "" for new ones; None for other files."""
    for folder in Path(paths[0]).parents[:EXPORT_DEPTH] if paths else []:
        known = exported_ids(folder)
        if known is not None:
            below = (path.relative_to(folder) for path in paths if path.is_relative_to(folder))
            ids = [known.get(path.as_posix(), "") for path in below]
            return ids if len(ids) == len(paths) else None
    return None


def _names_of_paths(
    paths: list[PurePath], root: Any, ids: Sequence[str]
) -> Iterator[tuple[list[str], list[str]]]:
    """Yield pairs of names to compare: of the files, and of the selection's samples."""
    parts = [path.parts for path in paths]
    if root is not None and all(path.is_relative_to(root) for path in paths):
        depth = len(PurePath(root).parts)
    else:
        same = zip(*(names[:-1] for names in parts), strict=False)
        depth = next((n for n, names in enumerate(same) if len(set(names)) > 1), -1)
        depth = min(len(names) - 1 for names in parts) if depth < 0 else depth
    for above in range(min(depth, 3) + 1):
        yield ["/".join(path[depth - above :]) for path in parts], list(ids)
    bare = [id.partition("/")[2] if _split(id.partition("/")[0]) else id for id in ids]
    # The test images may have the names of training images: their folder must not say so.
    folder = _split(parts[0][depth - 1]) if depth else None
    if len(set(bare)) == len(bare) and folder in (None, _split(ids[0].partition("/")[0])):
        yield ["/".join(path[depth:]) for path in parts], bare


def _split(folder: str) -> str | None:
    return SPLITS.get(folder.lower())


def _checked(rows: np.ndarray, names: Sequence[str], what: str, ids: Sequence[str]) -> np.ndarray:
    unknown = np.flatnonzero(rows < 0)
    if len(unknown):
        raise InvalidValueError(
            f"{len(unknown):,} of the data set's {len(rows):,} {what} are not in the selection, "
            f'such as "{names[unknown[0]]}"; ids of the selection are such as "{ids[0]}"',
            "apply it to the training set that it was made on; a Subset may leave other files out",
        )
    return rows


def _check_positions(dataset: Any) -> None:
    """Raise for streams, whose samples cannot be picked by position."""
    # By name: torch need not be loaded, and the streams of Hugging Face have the same one.
    streamed = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    if streamed or not hasattr(dataset, "__len__"):
        raise InvalidValueError(
            f"the samples of {type(dataset).__name__} have no positions, so none can be picked",
            "give a map-style data set, or ask `selection.keeps` for each sample as it is read",
        )


def _check_one_each(dataset: Any, count: int, what: str) -> None:
    """Raise if the data set does not have one id or path for each of its samples."""
    if len(dataset) != count:
        raise InvalidValueError(
            f"the data set has {len(dataset):,} samples, but {count:,} {what}",
            "apply the selection to one that has one for each sample",
        )


def _check_length(dataset: Any, ids: Sequence[str]) -> None:
    if len(dataset) != len(ids):
        raise InvalidValueError(
            f"the data set has {len(dataset)} samples, the selection {len(ids)}",
            "apply it to the training set that it was made on",
        )


def _check_labels(dataset: Any, labels: np.ndarray) -> None:
    """Raise unless the labels show that the data set is in pack order."""
    own = _labels(dataset)
    if own is None:
        raise InvalidValueError(
            "the order of the data set cannot be verified: it has no `ids`, `samples` or `targets`",
            ORDER_FIX,
        )
    differs = np.flatnonzero(own != labels)
    if len(differs):
        raise InvalidValueError(
            "the data set is not in pack order: "
            f"{counted(len(differs), 'label differs', 'labels differ')}, the first one at "
            f"{differs[0]} ({own[differs[0]]} instead of {labels[differs[0]]})",
            "give the data set an attribute `ids`",
        )
    # Labels that are grouped by class say nothing about the order within a class.
    if 1 + (np.diff(labels) != 0).sum() <= len(np.unique(labels)):
        raise InvalidValueError(
            "the order of the data set cannot be verified: its labels are grouped by class, "
            "and it has no `ids` or `samples`",
            ORDER_FIX,
        )
