"""Random numbers without state: a 64-bit integer hash of (sample, epoch, seed).

The same on every device, and independent of batch and worker.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = Any
"""A torch tensor or a numpy array; processes that only decode do not import torch."""

# splitmix64 (Steele, Lea and Flood 2014): an increment per step, then two rounds of mixing.
SEED_STEP = 0xD1342543DE82EF95
STEPS = (0x9E3779B97F4A7C15, SEED_STEP)
"""Of the epoch and the seed."""
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LOW_BITS = 24
"""Bits of one draw; a hash holds two draws and more."""


def sample_keys(ids: Iterable[str]) -> np.ndarray:
    """Return a stable 64-bit hash of each id, (n,) int64."""
    digests = (hashlib.blake2b(str(id).encode(), digest_size=8).digest() for id in ids)
    return np.frombuffer(b"".join(digests), "<i8").astype(np.int64)


def hash_bits(keys: Array, epoch: int | Array, seed: int | Array, stream: int | Array = 0) -> Array:
    """Return 64 random bits per key and stream, int64; they are broadcast against each other."""
    x = keys
    for value, factor in zip((epoch, seed), STEPS, strict=True):
        exact = isinstance(value, int | np.integer)  # Python's integers do not overflow
        x = x + (signed(int(value) * factor) if exact else value * signed(factor))
    # Multiplied, because an added stream would repeat the numbers of another epoch.
    if not isinstance(stream, int):
        x = x * (stream * signed(2 * SEED_STEP) + 1)
    elif stream:
        x = x * signed(2 * stream * SEED_STEP + 1)
    for shift, factor in ROUNDS:
        x = (x ^ _shifted(x, shift)) * signed(factor)
    return x ^ _shifted(x, 31)


def low_bits(bits: Array) -> Array:
    """Return the lowest `LOW_BITS` bits."""
    return bits & ((1 << LOW_BITS) - 1)


def _shifted(x: Array, by: int) -> Array:
    """Return a logical shift right; torch's shift copies the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def signed(value: int) -> int:
    """Return the int64 with the lowest 64 bits of `value`."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
