"""Near-copies of test images in training, by their details after alignment.

`near_copies` compares whole images at eight pixels a side, so a copy that was shifted, mirrored or
cropped is missed. Here each test image is compared with the training images that look most like it
at that size, and with those that look like its mirror image. The details of both (edges, without
brightness, colour cast and the border) are shifted against each other for the best correlation.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from thresher.data.pack import Pack
from thresher.progress import bar
from thresher.select.copies import NO_COPIES, SIDE, Copies, small_images

if TYPE_CHECKING:
    import torch

LEAST_SIDE, MOST_SIDE = 16, 32
"""Smaller images have no details to align; larger ones are scaled down."""
CANDIDATES = 5
"""Training images that a test image, and its mirror image, are compared with."""
LEAST_USUAL = 0.8
"""Usual distance below which aligned images are too alike; 1.09 in CIFAR-10, 0.47 in
Fashion-MNIST."""
SHIFT = 5
"""Most pixels that details are shifted by, in each direction."""
_FINE, _COARSE = 0.7, 2.5
"""Details are what a blur of the first width keeps and one of the second removes, in pixels."""
_BORDER = 4
"""Pixels that fade out: frames are alike."""
_BLOCK = 256
_BLOCK_ELEMENTS = 1 << 25
"""Test images, and their products with training images, that are looked at together at most."""


def aligned_copies(
    pack: Pack, train: np.ndarray, others: np.ndarray, vectors: np.ndarray, closeness: float
) -> Copies:
    """Find training images that are near-copies of test images.

    What is near depends on the data: a pair is a copy if its distance is below `closeness` of the
    usual (median) distance between a test image and the training image most like it. Where most
    images are alike, such as outlines of clothes, details do not tell a copy: nothing is returned.

    Args:
        pack: The pack.
        train: (n,) positions of the training images.
        others: (m,) positions of the test images.
        vectors: (n + m, d) of both, as `pixel_vectors` returns them.
        closeness: Share of the usual distance, such as 0.5.

    Returns:
        Pairs of rows of `vectors`, the test image being the later one; no pairs if the images are
        smaller than 16 pixels. Costs n·m·d operations, and ten alignments per test image.
    """
    n, side = len(train), min(pack.image_shape[:2]) if pack.image_shape else MOST_SIDE
    if side < LEAST_SIDE or closeness == 0 or n == 0 or len(others) == 0:
        return NO_COPIES
    step = max(1, min(_BLOCK, _BLOCK_ELEMENTS // n))
    pairs, best = [NO_COPIES], np.full(len(others), -1.0, np.float32)
    with bar("aligning images", len(others), "images") as shown:
        for begin in range(0, len(others), step):
            rows = np.arange(begin, min(begin + step, len(others)))
            for near, similarity in _compare(pack, train, others[rows], vectors, n + rows):
                later = np.repeat(n + rows, near.shape[1])
                pairs.append(Copies(later, near.ravel(), similarity.ravel()))
                best[rows] = np.maximum(best[rows], similarity.max(axis=1))
            shown.advance(len(rows))
    usual = float(np.median(_distance(best)))
    if usual < LEAST_USUAL:
        return NO_COPIES
    later, earlier, similarity = (np.concatenate(values) for values in zip(*pairs, strict=True))
    copy = np.flatnonzero(_distance(similarity) < closeness * usual)
    # A pair may be a candidate both ways: the better alignment counts.
    copy = copy[np.argsort(-similarity[copy], kind="stable")]
    _, first = np.unique(later[copy] * n + earlier[copy], return_index=True)
    return Copies(later[copy[first]], earlier[copy[first]], similarity[copy[first]])


def _distance(similarity: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(2 - 2 * similarity, 0))


def _compare(
    pack: Pack, train: np.ndarray, others: np.ndarray, vectors: np.ndarray, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield candidates (b, k) of test images, rows of `train`, and their similarity (b, k); then
    the same for the mirror images."""
    images, k = _images(pack, others), min(CANDIDATES, len(train))
    small = vectors[rows]
    mirrored = small.reshape(len(rows), SIDE, SIDE, -1)[:, :, ::-1].reshape(len(rows), -1)
    for query, pixels in ((small, images), (mirrored, images[:, :, ::-1])):
        products = query @ vectors[: len(train)].T
        near = np.argpartition(products, len(train) - k, axis=1)[:, -k:]
        others_near = _images(pack, train[near.ravel()]).reshape(*near.shape, *pixels.shape[1:])
        yield near, _correlation(pixels[:, None], others_near)


def _images(pack: Pack, positions: np.ndarray) -> np.ndarray:
    """Return images (b, h, w, c) float32, at most 32 pixels a side."""
    return small_images(pack, positions, MOST_SIDE).astype(np.float32)


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the best correlation (…) of the details of images (…, h, w, c) over all shifts."""
    import torch

    height, width = a.shape[-3:-1]
    # Zeros around the images: a shift moves nothing in from the other side. At least `SHIFT` of
    # them; a transform of 40 pixels takes a third of the time of one of 37, which is a prime.
    size = tuple(-(-(side + SHIFT) // 8) * 8 for side in (height, width))
    first, second = (torch.fft.rfft2(_details(images), s=size) for images in (a, b))
    shifted = torch.fft.irfft2((first * second.conj()).sum(dim=-3), s=size)
    down, across = (np.r_[: SHIFT + 1, n - SHIFT : n] for n in size)
    return shifted[..., down[:, None], across].flatten(-2).max(dim=-1).values.numpy()


def _details(images: np.ndarray) -> "torch.Tensor":
    """Return the details of images (…, h, w, c) as (…, c, h, w) of length 1."""
    import torch

    x = torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, -3)))
    height, width = x.shape[-2:]
    fine, coarse = (_blur(height, sigma) @ x @ _blur(width, sigma).T for sigma in (_FINE, _COARSE))
    details = (fine - coarse) * (_fade(height)[:, None] * _fade(width))
    details -= details.mean(dim=(-2, -1), keepdim=True)
    length = details.flatten(-3).norm(dim=-1)
    return details / length.clamp_min(1e-3)[..., None, None, None]


def _blur(side: int, sigma: float) -> "torch.Tensor":
    """Return the matrix (side, side) of a Gaussian blur of a line of pixels."""
    import torch

    at = torch.arange(side, dtype=torch.float32)
    weights = torch.exp(-((at[:, None] - at) ** 2) / (2 * sigma**2))
    weights[weights < 1e-30] = 0  # products with numbers below 1e-38 take 20 times as long
    return weights / weights.sum(dim=1, keepdim=True)


def _fade(side: int) -> "torch.Tensor":
    """Return weights (side,) that rise from 0 to 1 over the border."""
    import torch

    at = torch.arange(side, dtype=torch.float32)
    return (torch.minimum(at + 1, side - at) / (_BORDER + 1)).clamp(max=1)
