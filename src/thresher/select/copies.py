"""Near-copies of images, by their pixels at eight pixels a side.

Unlike the filter `near-duplicates`, which compares a network's features within a class, this finds
copies in other classes and splits, and does not depend on a network. Copies may differ in size,
aspect, brightness, contrast, compression and a little noise; for crops and mirror images of test
images see `aligned_copies`.
"""

from typing import NamedTuple

import numpy as np

from thresher.data.gather import run_in_threads
from thresher.data.images import resized, squashed
from thresher.data.pack import Pack
from thresher.progress import bar
from thresher.select.filters.near_duplicates import similar_pairs
from thresher.select.graphs import spanning_tree

SIDE = 8
CLOSENESS = 0.3
"""Distance of a copy, as a share of the usual distance between nearest images."""
LEAST_DISTANCE, MOST_DISTANCE = 0.02, 0.3
_SAMPLE = 1000
_BLOCK = 4096


class Copies(NamedTuple):
    """Pairs of images that are near-copies, m of them, sorted by `later`."""

    later: np.ndarray
    """(m,) rows, each above that in `earlier`."""
    earlier: np.ndarray
    similarity: np.ndarray
    """(m,) correlation of the pixels."""


NO_COPIES = Copies(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def pixel_vectors(pack: Pack, positions: np.ndarray) -> np.ndarray:
    """Return small versions of images as vectors (n, d) of mean 0 and length 1; 0 if blank."""
    parts = []
    with bar("reading images", len(positions), "images") as shown:
        for begin in range(0, len(positions), _BLOCK):
            rows = positions[begin : begin + _BLOCK]
            images = small_images(pack, rows, SIDE)
            x = images.reshape(len(rows), -1).astype(np.float32)
            x -= x.mean(axis=1, keepdims=True)
            norm = np.linalg.norm(x, axis=1, keepdims=True)
            parts.append(x / np.where(norm > 0, norm, 1))
            shown.advance(len(rows))
    return np.concatenate(parts)


def small_images(pack: Pack, positions: np.ndarray, side: int) -> np.ndarray:
    """Return images (n, h, w, c) uint8, scaled down to a square of `side` pixels if larger."""
    if pack.image_shape is not None:
        images = pack.images(positions)
        return resized(images, side, whole=True) if max(pack.image_shape[:2]) > side else images
    out = np.empty((len(positions), side, side, 3), np.uint8)

    def fill(begin: int, end: int) -> None:
        for row in range(begin, end):
            out[row] = squashed(pack.encoded(int(positions[row])), side)

    run_in_threads(fill, len(positions), least=4)
    return out


def near_copies(x: np.ndarray) -> Copies:
    """Find near-copies among unit vectors (n, d); costs n²·d operations, in blocks.

    What is near depends on the data: handwritten digits are all alike, photographs are not. A pair
    is a copy if its distance is below 0.3 of the median distance between nearest neighbours, which
    no pair of the digits is, and 0.1 % of Fashion-MNIST's images.
    """
    if len(x) < 2:
        return NO_COPIES
    rows = np.random.Generator(np.random.Philox(key=[0, 0xC0B1E5])).permutation(len(x))[:_SAMPLE]
    products = x[rows] @ x.T
    products[np.arange(len(rows)), rows] = -1
    usual = float(np.median(np.sqrt(np.maximum(2 - 2 * products.max(axis=1), 0))))
    limit = min(max(CLOSENESS * usual, LEAST_DISTANCE), MOST_DISTANCE)
    later, earlier, _ = similar_pairs(x, np.float32(1 - limit**2 / 2))
    similarity = np.einsum("ij,ij->i", x[later], x[earlier])
    return Copies(later, earlier, similarity)


def join_copies(first: Copies, second: Copies) -> Copies:
    """Return the pairs of both; of a pair in both, that of `first`."""
    later, earlier, similarity = (
        np.concatenate(values) for values in zip(first, second, strict=True)
    )
    _, rows = np.unique(np.stack([later, earlier]), axis=1, return_index=True)
    return Copies(later[rows], earlier[rows], similarity[rows])


def fewest_links(copies: Copies, n: int) -> Copies:
    """Return the fewest pairs that connect the same of n images, the most similar ones.

    Of k copies of one image, that is k - 1 pairs instead of k·(k - 1)/2.
    """
    later, earlier, similarity = copies
    distance = 2 - similarity.astype(np.float64)  # above 0, which would be no edge
    first, second, weight = spanning_tree(later, earlier, distance, n)
    return Copies(first, second, (2 - weight).astype(np.float32))
