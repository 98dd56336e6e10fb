"""Checks that every source shares: class names, labels and sample ids."""

import logging
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thresher.errors import InvalidValueError, NotFoundError
from thresher.read_errors import unreadable

logger = logging.getLogger(__name__)
MAX_CLASSES = 1_000_000
"""Checked before names are made, so that a wrong label cannot exhaust memory."""


def label_columns(kinds: Mapping[str, Any]) -> list[str]:
    """Return the columns of a Hugging Face data set that may hold the labels, the best first.

    `kinds` maps all columns to their features, or to None.
    """
    classes = [name for name, kind in kinds.items() if type(kind).__name__ == "ClassLabel"]
    usual = [name for name in kinds if name in ("label", "labels", "fine_label")]
    return [*classes, *usual, *(name for name in kinds if name in ("target", "targets"))]


def as_labels(values: Any, where: str) -> np.ndarray:
    """Return labels (integers, or floats without a fraction) as a flat int64 array.

    `where` is what the labels belong to, for messages.
    """
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths, as of samples with several labels
        array = np.asarray(values, object)
    array = array.reshape(-1)
    if array.dtype.kind not in "biuf":
        raise InvalidValueError(
            f"labels of {where} must be integers, got {_example(array)}",
            "number the classes from 0",
        )
    with np.errstate(invalid="ignore"):
        wrong = ~((array >= 0) & (array < MAX_CLASSES) & (array == np.floor(array)))
    if wrong.any():
        raise InvalidValueError(
            f"labels of {where} must be integers in [0, {MAX_CLASSES:,}), got "
            f"{_example(array[wrong])}",
            "number the classes from 0",
        )
    return array.astype(np.int64)


def _example(array: np.ndarray) -> str:
    return repr(array[0].item() if hasattr(array[0], "item") else array[0])[:60]


def class_names(
    file: Path | None, labels: Callable[[], Iterable[int] | np.ndarray], where: str
) -> list[str]:
    """Return the class names: the lines of `file`, or the numbers up to the largest label.

    Blank lines at the end of `file` do not count; others would shift the numbers of the classes.
    `labels` returns all labels, or the largest of each part; it is called only without `file`.
    """
    if file is None:
        largest = as_labels(list(labels()), where).max(initial=-1)
        return [str(label) for label in range(int(largest) + 1)]
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError:
        raise NotFoundError(f"{file} does not exist", "check `classes`") from None
    except (OSError, UnicodeDecodeError) as error:
        wrong = InvalidValueError(f"{file} cannot be read as a list of class names")
        raise unreadable(file, error) or wrong from None
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise InvalidValueError(
            f"line {lines.index('') + 1} of {file} is blank", "give one class name per line"
        )
    check_classes(lines, str(file))
    return lines


def check_classes(names: Sequence[str], where: str) -> None:
    if not names:
        raise InvalidValueError(f"{where} has no classes", "give at least one class name")
    if len(names) > MAX_CLASSES:
        raise InvalidValueError(f"{where} has {len(names):,} classes, more than {MAX_CLASSES:,}")
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidValueError(f"class names of {where} must be text, got {name!r}")
        if name in seen:
            raise InvalidValueError(
                f'{where} has two classes named "{name}"', "class names must be unique"
            )
        seen.add(name)


def check_samples(ids: Sequence[str], labels: np.ndarray, classes: int, where: str) -> None:
    """Check that ids are text that can be stored, and labels below the number of classes."""
    if len(ids) != len(labels):
        raise InvalidValueError(f"{where} gave {len(ids)} ids and {len(labels)} labels")
    for id in ids:
        if not isinstance(id, str) or not id or "\0" in id:
            raise InvalidValueError(
                f"ids of {where} must be text without NUL characters, got {id!r}"
            )
        try:
            id.encode()
        except UnicodeEncodeError:  # such as the name of a file in a tar of another encoding
            raise InvalidValueError(f"ids of {where} must be UTF-8 text, got {id!r}") from None
    outside = np.flatnonzero(labels >= classes)
    if len(outside):
        row = int(outside[0])
        raise InvalidValueError(
            f'label of sample "{ids[row]}" of {where} must be in [0, {classes}), got {labels[row]}'
        )


def mention_empty(names: Sequence[str], labels: np.ndarray) -> None:
    """Log classes without images, as of labels that count from 1."""
    empty = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0).tolist()
    if empty:
        logger.warning(
            '%d of %d classes have no images, such as "%s"; labels count from 0',
            *(len(empty), len(names), names[empty[0]]),
        )


def mention_alike(names: Sequence[str]) -> None:
    """Log classes whose names differ only in case, spaces or the encoding of accents."""
    first: dict[str, str] = {}
    for name in names:
        plain = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
        if first.setdefault(plain, name) != name:
            logger.warning(
                'classes are called alike, such as "%s" and "%s"; if they are one class, give it '
                "one name",
                *(first[plain], name),
            )
            return


def mention_untrained(names: Sequence[str], trained: np.ndarray, tested: np.ndarray) -> None:
    """Log classes that are tested but never trained on, given the labels of both kinds of samples.

    They are often one class under two names, as `train/dog` and `test/Dog`, or a selection drops
    all their images.
    """
    seen, wanted = (np.bincount(labels, minlength=len(names)) > 0 for labels in (trained, tested))
    unseen = np.flatnonzero(wanted & ~seen).tolist()
    if not unseen or not len(trained):
        return
    first = names[unseen[0]]
    known = [name for name, trains in zip(names, seen.tolist(), strict=True) if trains]
    same = [f' (is it "{name}"?)' for name in known if name.casefold() == first.casefold()]
    logger.warning(
        '%d of %d classes have images in other splits, but none for training, such as "%s"%s: no '
        "network can learn them",
        *(len(unseen), len(names), first, "".join(same[:1])),
    )


def mention_no_training(splits: Mapping[str, int]) -> None:
    """Log splits of which none is called train though some have unusual names, such as numbers."""
    unusual = [name for name in splits if name not in ("train", "validation", "test")]
    if unusual and not splits.get("train"):
        logger.warning(
            'there are no training images: the splits are called %s; name them "train", '
            '"validation" and "test"',
            ", ".join(f'"{name}"' for name in splits),
        )
