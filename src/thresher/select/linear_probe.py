"""A cross-validated logistic regression on features, in blocks: any number of samples and classes.

The same model as scikit-learn's `LogisticRegression` (one weight vector per class, an L2 penalty of
1 on the weights), minimised by L-BFGS on the CPU or a GPU. Probabilities are computed when they are
asked for, block by block; a table for ImageNet would take 10 GB.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from thresher.plain_optimizers import LBFGS

BLOCK_BYTES = 64 << 20
"""Of the probabilities that are computed at once."""
ITERATIONS = 300
TOLERANCE = 1e-4
"""Largest entry of the gradient of the mean loss at the end."""


@dataclass(frozen=True)
class LinearProbe:
    """Regressions that each have not seen a part of the samples, and the samples."""

    x: Tensor
    """(n, d) float32."""
    fold: Tensor
    """(n,): the fold of each sample, whose regression has not seen it."""
    weights: Tensor
    """(folds, d + 1, classes); the last row is the intercept."""

    @property
    def classes(self) -> int:
        return int(self.weights.shape[2])

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Return the out-of-fold probabilities of some samples, (m, classes) float32."""
        x, fold = self.x[begin:end], self.fold[begin:end]
        p = torch.empty(len(x), self.classes, device=x.device)
        for number, weights in enumerate(self.weights):
            mine = fold == number
            p[mine] = F.softmax(_logits(x[mine], weights), dim=1)
        return p.cpu().numpy()


def fit_probe(x: Tensor, labels: np.ndarray, fold: np.ndarray) -> LinearProbe:
    """Fit a regression for each fold, on the samples outside of it.

    Args:
        x: (n, d) float32, on the device to compute on.
        labels: (n,), from 0 to classes - 1.
        fold: (n,), from 0 to folds - 1.
    """
    y = torch.from_numpy(labels).to(x.device)
    folds = torch.from_numpy(fold).to(x.device)
    count = int(labels.max()) + 1
    fitted = []
    for number in range(int(fold.max()) + 1):
        seen = folds != number
        fitted.append(_fit(x[seen], y[seen], count))
    return LinearProbe(x, folds, torch.stack(fitted))


def _fit(x: Tensor, y: Tensor, classes: int) -> Tensor:
    n, d = x.shape
    weights = torch.zeros(d + 1, classes, device=x.device, requires_grad=True)
    optimizer = LBFGS(
        [weights],
        max_iter=ITERATIONS,
        tolerance_grad=TOLERANCE,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )
    step = max(1, BLOCK_BYTES // (4 * classes))

    def closure() -> float:
        optimizer.zero_grad()
        penalty = weights[:-1].square().sum() / (2 * n)
        penalty.backward()
        total = penalty.detach()
        for begin in range(0, n, step):
            rows = slice(begin, begin + step)
            loss = F.cross_entropy(_logits(x[rows], weights), y[rows], reduction="sum") / n
            loss.backward()
            total = total + loss.detach()
        return float(total)

    optimizer.step(closure)
    return weights.detach()


def _logits(x: Tensor, weights: Tensor) -> Tensor:
    return torch.addmm(weights[-1], x, weights[:-1])
