"""Principal components of features that may not fit into memory.

Up to `EXACT_WIDTH` columns the covariance is summed block by block in float64 and decomposed: one
pass, exact, d² memory. Beyond that a seeded randomised range finder makes a few passes with thin
matrices. Both read rows in blocks (a memory map stays on disk), run on any torch device, and give
the same bytes for the same input on the same machine.
"""

from dataclasses import dataclass

import numpy as np
import torch

from thresher.errors import InvalidValueError
from thresher.select.feature_blocks import blocks, mean_of

EXACT_WIDTH = 4096
OVERSAMPLING = 10
POWER_ITERATIONS = 6


@dataclass(frozen=True)
class Components:
    """A fitted PCA: the mean (d,) and the axes (d, m), as float64 tensors on the device."""

    mean: torch.Tensor
    axes: torch.Tensor
    explained: np.ndarray
    """(m,) share of the variance along each axis."""

    def project(self, features: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Project features (n, d) to (n, m) float32 on the device; memory n·m and one block."""
        device = self.mean.device
        out = torch.empty((len(features), self.axes.shape[1]), dtype=torch.float32, device=device)
        for begin, block in blocks(features, device):
            out[begin : begin + len(block)] = ((block - self.mean) @ self.axes).float()
        return out


def fit_pca(
    features: np.ndarray | torch.Tensor,
    components: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Components:
    """Fit to features (n, d), any float type, possibly memory-mapped or already on the device."""
    n, d = features.shape
    if n < 2 or d < 1:
        raise InvalidValueError(
            f"features must have two rows and a column, got shape {features.shape}", "", "features"
        )
    device = torch.device(device)
    m = min(components, d, n - 1)
    mean = mean_of(features, device)
    if not bool(torch.isfinite(mean).all()):
        raise InvalidValueError("features must be finite", "embed again in float32", "features")
    if d <= EXACT_WIDTH:
        axes, variance, total = _exact(features, mean, m)
    else:
        axes, variance, total = _randomised(features, mean, m, seed)
    share = variance / total if total > 0 else torch.zeros_like(variance)
    # Eigenvectors have no sign: the largest entry of each becomes positive.
    sign = axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)).sign()
    return Components(mean, axes * torch.where(sign == 0, 1.0, sign), share.cpu().numpy())


def _exact(
    features: np.ndarray | torch.Tensor, mean: torch.Tensor, m: int
) -> tuple[torch.Tensor, torch.Tensor, float]:
    d = len(mean)
    covariance = torch.zeros((d, d), dtype=torch.float64, device=mean.device)
    for _, block in blocks(features, mean.device):
        block = block - mean
        covariance.addmm_(block.T, block)
    values, vectors = torch.linalg.eigh(covariance)
    values = values.flip(0).clamp_min(0)
    return vectors.flip(1)[:, :m], values[:m], float(values.sum())


def _randomised(
    features: np.ndarray | torch.Tensor, mean: torch.Tensor, m: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Iterate a subspace: apply (AᵀA)ᵏ to random vectors without forming the covariance."""
    n, d = features.shape
    width = min(m + OVERSAMPLING, d, n)
    start = np.random.default_rng(seed).standard_normal((d, width))
    basis = torch.linalg.qr(torch.from_numpy(start).to(mean.device))[0]
    total = 0.0
    for step in range(POWER_ITERATIONS + 1):
        product = torch.zeros_like(basis)
        gram = torch.zeros((width, width), dtype=torch.float64, device=mean.device)
        for _, block in blocks(features, mean.device):
            block = block - mean
            if step == 0:
                total += float(block.square().sum())
            image = block @ basis
            gram.addmm_(image.T, image)
            product.addmm_(block.T, image)
        if step < POWER_ITERATIONS:
            basis = torch.linalg.qr(product)[0]
    values, vectors = torch.linalg.eigh(gram)
    values = values.flip(0).clamp_min(0)
    return (basis @ vectors.flip(1))[:, :m], values[:m], total
