"""Labels are numbers: checks that two sides mean the same classes by them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from thresher.data.matching import label_column
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError


def check_class_order(
    names: Sequence[str], classes: Sequence[str], owner: str, other: str, fix: str
) -> None:
    """Raise InvalidValueError if a class has another number in `classes` than in `names`.

    Classes that only one side has are no error, such as one that was appended or renamed: every
    name that both have still means the same number.

    Args:
        names: Class names of a selection in the order of their numbers; empty if unknown.
        classes: Class names of the data that it is applied to.
        owner: What `names` belong to, for the message.
        other: What `classes` belong to, likewise.
        fix: What to do about it.

    >>> check_class_order(["cat", "dog"], ["cat", "dog", "fox"], "the selection", "pets", "")
    >>> check_class_order(["cat", "dog"], ["cat", "cow", "dog"], "the selection", "pets", "")
    Traceback (most recent call last):
    thresher.errors.InvalidValueError: class "dog" is number 1 in the selection, but 2 in pets
    """
    if list(classes[: len(names)]) == list(names):  # the usual case, without a dictionary
        return
    numbers = {name: number for number, name in enumerate(classes)}
    for number, name in enumerate(names):
        there = numbers.get(name, number)
        if there != number:
            what = f'class "{name}" is number {number} in {owner}, but {there} in {other}'
            raise InvalidValueError(what, fix)


def check_dataset_classes(names: Sequence[str], dataset: Any, owner: str) -> None:
    """Do so for a data set of torchvision or Hugging Face, if it names its classes."""
    fix = "number the classes as the pack does"
    check_class_order(names, _classes_of(dataset), owner, "the data set", fix)


def check_new_labels(labels: np.ndarray, pack: Pack, owner: str) -> None:
    """Raise InvalidValueError if a pack does not have the class of a label that people gave."""
    if len(labels) and labels.max() >= len(pack.classes):
        raise InvalidValueError(
            f"{owner} relabels a sample as class number {labels.max()}, but {pack.name} has "
            f"{len(pack.classes)} classes, numbered from 0",
            "undo that decision",
        )


def _classes_of(dataset: Any) -> list[str]:
    """Return the class names of a data set, or of the one inside torch's Subsets."""
    while hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        dataset = dataset.dataset
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):  # of Hugging Face
        names = getattr(features.get(label_column(dataset)), "names", None)
    else:
        names = getattr(dataset, "classes", None)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return []
    return list(names)
