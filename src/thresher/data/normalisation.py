"""Mean and standard deviation of images, from counts of their pixels' values.

Counts are integers, so that the result does not depend on the order in which they are added.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from thresher.data.hashing import sample_keys
from thresher.data.images import decode, pillow_image

SHARE = 16
LEAST = 1024
"""Of encoded training images, one in SHARE is counted, but at least LEAST of them."""
Histograms = Mapping[str, np.ndarray | list[list[int]]]
"""Per split, the number of pixels with each value, (channels, 256)."""


def from_counts(parts: Sequence[Histograms]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation per channel of the training images."""
    found = {split for part in parts for split in part}
    # Of the training images, so that test images do not influence the normalisation.
    splits = {"train"} if "train" in found else found
    counts = np.sum(
        [np.asarray(part[split], np.int64) for part in parts for split in splits if split in part],
        axis=0,
    )
    values = np.arange(256, dtype=np.int64)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 0))
    return (mean / 255).tolist(), (std / 255).tolist()


def subsample(image: np.ndarray) -> np.ndarray:
    """Return every eighth pixel each way of an image that is not tiny, (n, 3)."""
    # Counting all pixels of a photograph would cost a quarter of its decoding.
    step = 8 if image.size > 3 * 64 * 64 else 1
    return image[::step, ::step].reshape(-1, 3)


def value_counts(images: np.ndarray) -> np.ndarray:
    """Count the byte values per channel, (channels, 256) int64, of uint8 images."""
    channels = images.shape[3]
    if channels in (1, 3) and len(images):
        # Pillow counts bytes; numpy would convert each of them to eight bytes first.
        tall = images.reshape(-1, images.shape[2], channels)
        return np.array(pillow_image(tall).histogram(), np.int64).reshape(channels, 256)
    flat_bytes = images.reshape(-1, channels)
    return np.stack([np.bincount(flat_bytes[:, c], minlength=256) for c in range(channels)])


def sampled_rows(batches: Sequence[pa.RecordBatch]) -> np.ndarray:
    """Return the rows of an encoded pack, given its batches, whose images are counted; sorted.

    They are a sixteenth of the training images, at least 1,024, or all if there are fewer: those
    whose ids have the smallest hashes. So they depend on the ids only, not on order or shards.
    """
    ids, splits = (
        [value for batch in batches for value in batch.column(name).to_pylist()]
        for name in ("id", "split")
    )
    train = [n for n, split in enumerate(splits) if split == "train"]
    rows = np.array(train or range(len(splits)), np.int64)
    keys = sample_keys(ids[n] for n in rows)
    return np.sort(rows[np.argsort(keys)[: max(LEAST, len(rows) // SHARE)]])


def count_files(batches: Sequence[pa.RecordBatch], rows: np.ndarray) -> np.ndarray:
    """Decode the image files at `rows` of some batches and count their values, (3, 256) int64."""
    files = pa.chunked_array([batch.column("image") for batch in batches])
    counts = np.zeros((3, 256), np.int64)
    for row in rows.tolist():
        counts += value_counts(subsample(decode(files[row].as_py()))[None, None])
    return counts
