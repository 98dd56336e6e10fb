"""Choose test images while a pack is written."""

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from thresher.data.sources.base import Block
from thresher.errors import InvalidValueError
from thresher.options import option

logger = logging.getLogger(__name__)
FAR = 0.2
"""By how much of the share that was asked for a share of groups may be off without a warning."""


@dataclass(frozen=True, kw_only=True)
class HoldOutOptions:
    """How to split off test images."""

    test: float | None = option(None, gt=0, lt=1)
    """Share of the images of each class to set aside for testing; by default the source decides."""
    group: str | None = None
    r"""Keep images together whose names give the same text for this regular expression, such as
    'patient-(\d+)'; what its first parentheses match counts, or else the whole match."""
    seed: int = option(0, ge=0, lt=2**63, only_with={"test": True})
    """Seed of the choice of test images."""

    def check(self) -> None:
        """Raise if the regular expression is wrong, or is given without `test`."""
        if self.group is None:
            return
        if self.test is None:
            raise InvalidValueError("group is used with `test` only", "give both", "group")
        try:
            re.compile(self.group)
        except re.error as error:
            raise InvalidValueError(
                f"group is not a regular expression: {error}", "", "group"
            ) from None


def hold_out(block: Block, options: HoldOutOptions) -> Block:
    """Return a block in which the samples of some groups are in the split "test".

    A group is drawn as a whole, so the share is approximate. Without groups the block is returned
    as it is: the share of each class is drawn by `choose_test` when all samples are known.

    Raises:
        InvalidValueError: The source has a test split of its own.
    """
    if options.test is None or not len(block.ids):
        return block
    if other := sorted(set(block.splits) - {"train"}):
        raise InvalidValueError(
            f'test cannot be given: the source has a split "{other[0]}" already', "", "test"
        )
    if options.group is None:
        return block
    draws = np.array([_draw(_group(id, options.group), options.seed) for id in block.ids])
    return replace(block, splits=np.where(draws < options.test, "test", "train").tolist())


def choose_test(ids: Sequence[str], labels: np.ndarray, options: HoldOutOptions) -> np.ndarray:
    """Choose the share `test` of each class, exact to a sample, as a mask (n,) bool.

    The choice depends on ids, labels and the seed, not on the order of the samples. A class keeps
    at least one training sample.
    """
    assert options.test is not None
    draws = np.array([_draw(id, options.seed) for id in ids])
    chosen = np.zeros(len(draws), bool)
    order = np.lexsort((draws, labels))
    bounds = np.flatnonzero(np.diff(labels[order])) + 1
    for rows in np.split(order, bounds) if len(order) else []:
        # Rounded at random, so that many small classes have the right share together.
        extra = _draw(f"class {labels[rows[0]]}", options.seed)
        count = int(options.test * len(rows) + extra)
        chosen[rows[: min(count, len(rows) - 1)]] = True
    return chosen


def check_held_out(options: HoldOutOptions, splits: Mapping[str, int], ids: Iterable[str]) -> None:
    """Raise if the splits of a written pack are not what `options` ask for.

    Images that `group` does not match, and a share of test images that is far from `test`, are
    logged. `splits` are the numbers of samples, `ids` those of all.
    """
    if options.test is None:
        return
    group, count = options.group, sum(splits.values())
    unmatched = [id for id in ids if group is not None and not re.search(group, id)]
    if len(unmatched) == count:
        raise InvalidValueError(
            f'group "{group}" matches no image, so images that belong together would be separated',
            "correct the regular expression",
            "group",
        )
    for split in {"train", "test"}.difference(splits):
        many = " because groups are drawn as a whole" if group is not None else ""
        raise InvalidValueError(
            f'with this seed no image is in the split "{split}"{many}',
            "choose another `seed`, or another share as `test`",
        )
    if unmatched:
        logger.warning(
            'group does not match %d of %d images, such as "%s": they are drawn one by one',
            *(len(unmatched), count, unmatched[0]),
        )
    share = splits["test"] / count
    if group is not None and abs(share - options.test) > FAR * options.test:
        logger.warning(
            "%.0f %% of the images are test images, not %.0f %%: groups are drawn as a whole; "
            "another seed gives another share",
            *(100 * share, 100 * options.test),
        )


def _group(id: str, pattern: str) -> str:
    match = re.search(pattern, id)
    if match is None:
        return id
    return match[1] if match.re.groups and match[1] is not None else match[0]


def _draw(text: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on the text and the seed only."""
    # Of ids that are not UTF-8, too, which are refused when they are written.
    data = f"{seed}/{text}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
