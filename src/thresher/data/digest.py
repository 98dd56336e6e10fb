"""Naming data by its content: a digest per sample, one fingerprint per set of samples."""

import hashlib
from pathlib import Path

import numpy as np


def sample_digest(id: str, label: int, pixels: np.ndarray) -> bytes:
    """16 bytes that name one sample: its id, label, shape and pixels."""
    digest = hashlib.sha256(f"{id}\0{label}\0{pixels.shape}\0".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:16]


def fingerprint(digests: np.ndarray) -> str:
    """One name for a set of samples, whatever their order, shards or encoding.

    `digests` is (n, 16) uint8, a `sample_digest` per sample.
    """
    rows = np.ascontiguousarray(digests).view("S16").ravel()
    # numpy compares S16 without trailing zero bytes, which orders them all the same.
    return hashlib.sha256(np.sort(rows).tobytes()).hexdigest()[:32]


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
