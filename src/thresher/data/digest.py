"""Identify data by its content: a digest per sample, a fingerprint per set of samples."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from thresher.read_errors import unreadable


def sample_digest(id: str, label: int, pixels: np.ndarray) -> bytes:
    """Return 16 bytes that identify the id, label, shape and pixels of a sample."""
    digest = hashlib.sha256(f"{id}\0{label}\0{pixels.shape}\0".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:16]


def file_digest(id: str, label: int, data: bytes) -> bytes:
    """Return 16 bytes that identify the id, the label and the encoded file of a sample."""
    digest = hashlib.sha256(f"{id}\0{label}\0file\0".encode())
    digest.update(data)
    return digest.digest()[:16]


def fingerprint(digests: np.ndarray) -> str:
    """Identify a set of samples by their digests (n, 16) uint8, independent of their order."""
    rows = np.ascontiguousarray(digests).view("S16").ravel()
    # numpy ignores trailing zero bytes when it compares S16; the order is still well defined.
    return hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:32]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) or error from None


def order_digest(ids: Iterable[str]) -> str:
    """Identify a list of ids and their order."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:12]
