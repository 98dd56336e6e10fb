"""Where the samples of a selection are in its pack."""

from collections.abc import Sequence

import numpy as np

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError


def training_positions(
    pack: Pack, ids: Sequence[str], fingerprint: str, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions in `pack` of `ids`, and of all training samples, (n,) int64 each.

    Refuse a selection, which messages call `name`, that was made on a pack with another
    fingerprint, or that names other samples than training samples.
    """
    if pack.fingerprint != fingerprint:
        raise InvalidValueError(
            f"{name} was made on a pack with the fingerprint {fingerprint[:8]}…, but "
            f"{pack.name} has {pack.fingerprint[:8]}…",
            "select on this pack",
        )
    positions = pack.positions(ids)
    if (positions < 0).any():
        raise InvalidValueError(f"{name} names samples that are not in {pack.name}")
    train = pack.indices("train")
    if not np.isin(positions, train).all():
        raise InvalidValueError(
            f"{name} names validation or test samples of {pack.name}",
            "only training samples may be filtered",
        )
    return positions, train
