"""Data sets of others, with the labels that people gave to single samples."""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from thresher.data.matching import column, label_column
from thresher.errors import InvalidValueError

Change = tuple[int, int]
"""A sample's label in the pack, and its new one."""


class RelabelledSubset(Subset[Any]):
    """A torch `Subset` whose items (image, label, …) have new labels where people gave them.

    `changes` maps rows of the subset to the labels.
    """

    def __init__(self, dataset: Any, indices: list[int], changes: Mapping[int, Change]) -> None:
        super().__init__(dataset, indices)
        self.changes = dict(changes)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            row = list(range(len(self.indices))[row])
        if isinstance(row, list):
            return self.__getitems__(row)
        return self._relabel(row, super().__getitem__(row))

    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self._relabel(row, self.dataset[self.indices[row]]) for row in rows]

    def _relabel(self, row: int, item: Any) -> Any:
        row = range(len(self.indices))[row]  # may count from the end, or be a tensor
        if row not in self.changes:
            return item
        if not isinstance(item, tuple | list) or len(item) < 2:
            raise InvalidValueError(
                "the selection has new labels, but the data set's items are not (image, label)",
                "give a data set of such items, or use `thresher data export`",
            )
        old, new = self.changes[row]
        check_numbering(item[1], old)
        values = [item[0], _of_the_same_type(item[1], new), *item[2:]]
        return type(item)(*values) if hasattr(item, "_fields") else type(item)(values)


def _of_the_same_type(label: Any, new: int) -> Any:
    """Return the new label as the data set gives labels, since a batch holds old and new ones."""
    if isinstance(label, torch.Tensor):
        return torch.full_like(label, new)
    if isinstance(label, np.ndarray):
        return np.full_like(label, new)
    return type(label)(new)


def relabel_columns(dataset: Any, changes: Mapping[int, Change]) -> Any:
    """Return a Hugging Face `Dataset` with new labels in these rows."""
    name = label_column(dataset)
    if name is None:
        raise InvalidValueError(
            "the selection has new labels, but the data set has no column of labels",
            'call its column of labels "label"',
        )
    labels, kind, format = list(column(dataset, name)), dataset.features[name], dataset.format
    for row, (old, new) in changes.items():
        check_numbering(labels[row], old)
        labels[row] = new
    # A transform would be called while the column is missing.
    changed = dataset.with_format(None).remove_columns(name).add_column(name, labels)
    # In its own place: of several columns that may hold labels, a pack takes the first.
    ordered = changed.cast_column(name, kind).select_columns(dataset.column_names)
    return ordered.with_format(**format)


def check_numbering(label: Any, old: int) -> None:
    """Raise unless the data set numbers its classes as the pack does."""
    try:
        number = int(label)
    except (TypeError, ValueError, RuntimeError):
        # An image in the place of the label would fill the screen.
        shape = getattr(label, "shape", None)
        text = reprlib.repr(label) if shape is None else f"an array of shape {tuple(shape)}"
        raise InvalidValueError(
            f"the selection has new labels, but a label of the data set is not a number: {text}",
            "number the classes as the pack does",
        ) from None
    if number != old:
        raise InvalidValueError(
            f"a sample has the label {number} in the data set and {old} in the pack, so its "
            "new label cannot be translated",
            "number the classes as the pack does, or leave the selection out if it has been "
            "applied to the data set already",
        )
