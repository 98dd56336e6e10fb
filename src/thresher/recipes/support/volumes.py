"""A small generative task on 3-D volumes: nodule-like blobs, and an autoencoder for them.

It replaces the small data set of Cunha et al. 2018, which is not public: each volume holds one
soft ellipsoid of random position, size and brightness on a faint texture.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def volumes(n: int, side: int, seed: int) -> np.ndarray:
    """Return n volumes, (n, 1, side, side, side) float32 in [0.3, 2.3], determined by the seed."""
    random = np.random.Generator(np.random.Philox(key=[seed, side]))
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"))
    centre = random.uniform(-0.5, 0.5, (n, 3, 1, 1, 1)).astype(np.float32)
    radius = random.uniform(0.15, 0.45, (n, 3, 1, 1, 1)).astype(np.float32)
    bright = random.uniform(0.5, 1.0, (n, 1, 1, 1)).astype(np.float32)
    out = np.empty((n, 1, side, side, side), np.float32)
    for k in range(n):
        distance = (((grid - centre[k]) / radius[k]) ** 2).sum(0)
        texture = 0.3 + 0.02 * random.random((side, side, side), dtype=np.float32)
        out[k, 0] = 2 * bright[k] / (1 + np.exp(np.minimum(4 * (distance - 1), 60))) + texture
    return out


def autoencoder(side: int, width: int, seed: int) -> "torch.nn.Module":
    """Build a 3-D convolutional autoencoder with 32 latent numbers; its output is ≥ 0, as MSLE
    requires."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        small = side // 4
        return nn.Sequential(
            nn.Conv3d(1, width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv3d(width, 2 * width, 3, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.Flatten(),
            nn.Linear(2 * width * small**3, 32),
            nn.Linear(32, 2 * width * small**3),
            nn.LeakyReLU(0.1),
            nn.Unflatten(1, (2 * width, small, small, small)),
            nn.ConvTranspose3d(2 * width, width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose3d(width, 1, 4, stride=2, padding=1),
            nn.Softplus(),
        )


def msle(output: "torch.Tensor", target: "torch.Tensor") -> "torch.Tensor":
    """Return the mean squared logarithmic error of each sample, summed over the batch (0-d)."""
    difference = output.log1p() - target.log1p()
    return difference.square().flatten(1).mean(1).sum()
