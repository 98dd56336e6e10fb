"""Features that may not fit into memory, read in blocks of rows; a memory map stays on disk."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 64 << 20


def blocks(features: np.ndarray | Tensor, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, float64 tensor on the device) of each block of rows."""
    rows = max(1, BLOCK_BYTES // (8 * features.shape[1]))
    for begin in range(0, len(features), rows):
        part = features[begin : begin + rows]
        block = part if isinstance(part, Tensor) else _copied(part)
        yield begin, block.to(device).to(torch.float64)


def on_device(features: np.ndarray, device: torch.device) -> Tensor:
    """Return the features (n, d) on the device, without a copy of them in the host's memory."""
    kind = _copied(features[:1]).dtype
    out = torch.empty(features.shape, dtype=kind, device=device)
    rows = max(1, BLOCK_BYTES // (features.itemsize * features.shape[1]))
    for begin in range(0, len(features), rows):
        out[begin : begin + rows] = _copied(features[begin : begin + rows])
    return out


def _copied(part: np.ndarray) -> Tensor:
    """Return a copy as a tensor; the disk is read here, once.

    torch rejects read-only memory maps, and numbers in another byte order or of 16 bytes.
    """
    kind = part.dtype.newbyteorder("=") if part.itemsize <= 8 else np.dtype(np.float64)
    return torch.from_numpy(np.array(part, kind))


def mean_of(features: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Return the mean of the rows, (d,) float64 on the device."""
    mean = torch.zeros(features.shape[1], dtype=torch.float64, device=device)
    for _, block in blocks(features, device):
        mean += block.sum(dim=0)
    return mean / len(features)


def unit_rows(features: np.ndarray, device: torch.device) -> Tensor:
    """Return the rows at length 1, (n, d) float32 on the device, where all of them fit."""
    out = torch.empty(features.shape, dtype=torch.float32, device=device)
    for begin, block in blocks(features, device):
        rows = torch.nn.functional.normalize(block)
        out[begin : begin + len(block)] = rows
    return out
