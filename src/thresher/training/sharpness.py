"""Sharpness of the loss at the end of a run.

Two measures on a fixed subset of the training samples, without augmentation and with batch norm in
evaluation mode: the largest eigenvalue of the Hessian of the mean loss (Lanczos iteration, exact
Hessian-vector products), and the mean loss after random perturbations of the weights. Weight decay
is not part of the loss.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thresher.device_check import wide
from thresher.training.record import finite
from thresher.training.result import Sharpness
from thresher.training.split import TrainingSplit
from thresher.training.step import Step
from thresher.training.undo import kept

SAMPLES = 512
"""Training samples that the loss is measured on: those with the smallest keys, which are hashes of
the ids, among the samples that the run trains on."""
BATCH = 128
"""Samples at once; a Hessian-vector product holds two graphs of them."""
ITERATIONS = 25
TOLERANCE = 2e-3
"""Relative change of the eigenvalue at which the iteration ends."""
SCALE = 0.05
"""Norm of a perturbation, relative to that of the weights, for each parameter tensor."""
PERTURBATIONS = 5

Loss = Callable[[Tensor, Tensor], Tensor]
"""Sum of the losses of a batch, from outputs and labels."""
Batches = Sequence[tuple[Tensor, Tensor]]
"""Images and labels."""


def sharpness_of(step: Step, split: TrainingSplit) -> Sharpness:
    """Measure the sharpness on some of the samples that a run trained on."""
    data, keys = step.data, step.data.loader.keys.cpu().numpy()
    rows = np.flatnonzero(split.kept)
    positions = split.train[rows[np.argsort(keys[rows], kind="stable")[:SAMPLES]]]
    cuts = [positions[n : n + BATCH] for n in range(0, len(positions), BATCH)]
    batches = [
        (data.moved(data.augment.evaluate(batch.images)), data.moved(batch.labels))
        for batch in data.loader.batches(cuts)
    ]
    smoothing = step.config.label_smoothing
    loss = partial(F.cross_entropy, reduction="sum", label_smoothing=smoothing)
    return measure_sharpness(step.model, loss, batches)


def measure_sharpness(model: nn.Module, loss: Loss, batches: Batches) -> Sharpness:
    """Measure the sharpness of the mean loss of `model`; its weights and mode stay as they are.

    Takes as long as training on about 50,000 samples: a Hessian-vector product costs about four
    steps.
    """
    was_training = model.training
    model.eval()
    try:
        eigenvalue, iterations = top_eigenvalue(model, loss, batches)
        return Sharpness(
            finite(eigenvalue),
            iterations,
            loss=finite(mean_loss(model, loss, batches)),
            perturbed_loss=finite(perturbed_loss(model, loss, batches)),
            scale=SCALE,
            samples=_count(batches),
        )
    finally:
        model.train(was_training)


def top_eigenvalue(model: nn.Module, loss: Loss, batches: Batches) -> tuple[float, int]:
    """Return the largest eigenvalue of the Hessian of the mean loss, and the products it took.

    Lanczos iteration. Power iteration would find the eigenvalue of largest magnitude, and mixes the
    two ends of the spectrum where they are about equally far from 0, as early in training.
    """
    parameters = _parameters(model)
    start = _normal(parameters, torch.Generator().manual_seed(0))
    factor = 1 / _dot(start, start) ** 0.5
    vector = [v * factor for v in start]
    previous = [torch.zeros_like(v) for v in vector]
    diagonal: list[float] = []
    beside = [0.0]
    value = math.nan
    for count in range(1, ITERATIONS + 1):
        rest = _added(_hessian_product(model, loss, batches, vector), previous, -beside[-1])
        diagonal.append(_dot(vector, rest))
        rest = _added(rest, vector, -diagonal[-1])
        if not math.isfinite(diagonal[-1]):
            return math.nan, count
        matrix = np.diag(diagonal) + np.diag(beside[1:], 1) + np.diag(beside[1:], -1)
        eigenvalues = np.linalg.eigvalsh(matrix)
        before, value = value, float(eigenvalues[-1])
        norm = _dot(rest, rest) ** 0.5
        # What is left of a space that is used up is rounding error.
        used_up = norm <= 1e-6 * float(np.abs(eigenvalues).max())
        if used_up or abs(value - before) <= TOLERANCE * abs(value):
            return value, count
        beside.append(norm)
        previous, vector = vector, [r / norm for r in rest]
    return value, ITERATIONS


def _added(first: list[Tensor], second: list[Tensor], factor: float) -> list[Tensor]:
    """Return first + factor · second."""
    return [torch.add(a, b, alpha=factor) for a, b in zip(first, second, strict=True)]


def _hessian_product(
    model: nn.Module, loss: Loss, batches: Batches, vector: list[Tensor]
) -> list[Tensor]:
    """Return the product of the Hessian of the mean loss with `vector`."""
    parameters, count = _parameters(model), _count(batches)
    total = [torch.zeros_like(p) for p in parameters]
    # The fused attention kernels have no second derivative.
    with torch.enable_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for images, labels in batches:
            mean = loss(model(images), labels) / count
            first = torch.autograd.grad(mean, parameters, create_graph=True, allow_unused=True)
            pairs = [(g, v) for g, v in zip(first, vector, strict=True) if g is not None]
            slope = torch.stack([(g * v).sum() for g, v in pairs]).sum()
            if not slope.requires_grad:
                continue  # a loss that is linear in the weights
            second = torch.autograd.grad(slope, parameters, allow_unused=True)
            for t, h in zip(total, second, strict=True):
                if h is not None:
                    t += h
    return total


@torch.no_grad()
def mean_loss(model: nn.Module, loss: Loss, batches: Batches) -> float:
    """Return the mean loss."""
    return sum(float(loss(model(images), labels)) for images, labels in batches) / _count(batches)


def perturbed_loss(model: nn.Module, loss: Loss, batches: Batches) -> float:
    """Return the mean loss after random perturbations, the same ones every time."""
    random, parameters = torch.Generator().manual_seed(1), _parameters(model)
    losses = []
    for _ in range(PERTURBATIONS):
        with kept(list(parameters)):
            _perturb(parameters, random)
            losses.append(mean_loss(model, loss, batches))
    return sum(losses) / len(losses)


@torch.no_grad()
def _perturb(parameters: list[nn.Parameter], random: torch.Generator) -> None:
    for p, noise in zip(parameters, _normal(parameters, random), strict=True):
        norm = float(noise.norm())
        p.add_(noise, alpha=SCALE * float(p.norm()) / norm if norm else 0.0)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _normal(parameters: list[nn.Parameter], random: torch.Generator) -> list[Tensor]:
    """Return normal random numbers of the shapes of the parameters, the same on any device."""
    return [torch.randn(p.shape, generator=random).to(p) for p in parameters]


def _dot(first: list[Tensor], second: list[Tensor]) -> float:
    return float(sum((wide(a) * wide(b)).sum() for a, b in zip(first, second, strict=True)))


def _count(batches: Batches) -> int:
    return sum(len(labels) for _, labels in batches)
