"""Sharpness of the loss at the end of a run.

Two measures on a fixed subset of the training samples, without augmentation and with batch norm in
evaluation mode: the largest eigenvalue of the Hessian of the mean loss (power iteration with exact
Hessian-vector products), and the mean loss after random perturbations of the weights. Weight decay
is not part of the loss.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from thresher.training.record import finite
from thresher.training.result import Sharpness

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
    """Return the largest eigenvalue of the Hessian of the mean loss, and the products it took."""
    value, products = _power(model, loss, batches, 0.0)
    if value < 0:
        # Power iteration finds the eigenvalue of largest magnitude. Adding that magnitude to all
        # eigenvalues makes the largest one also that of largest magnitude.
        shifted, more = _power(model, loss, batches, -value)
        value, products = shifted + value, products + more
    return value, products


def _power(model: nn.Module, loss: Loss, batches: Batches, shift: float) -> tuple[float, int]:
    """Return the eigenvalue of largest magnitude of the Hessian plus `shift` times identity."""
    parameters = _parameters(model)
    random = torch.Generator().manual_seed(0)
    vector = _scaled(_normal(parameters, random), 1.0)
    value = 0.0
    for count in range(1, ITERATIONS + 1):
        product = _hessian_product(model, loss, batches, vector)
        product = [h + shift * v for h, v in zip(product, vector, strict=True)]
        before, value = value, _dot(vector, product)
        norm = _dot(product, product) ** 0.5
        if norm == 0 or abs(value - before) <= TOLERANCE * abs(value):
            return value, count
        vector = [p / norm for p in product]
    return value, ITERATIONS


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
    random = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(PERTURBATIONS):
        with _perturbed(_parameters(model), random):
            losses.append(mean_loss(model, loss, batches))
    return sum(losses) / len(losses)


@contextmanager
def _perturbed(parameters: list[nn.Parameter], random: torch.Generator) -> Iterator[None]:
    """Perturb the parameters in the block, and put the same bits back."""
    own = [p.detach().clone() for p in parameters]
    try:
        with torch.no_grad():
            for p, noise in zip(parameters, _normal(parameters, random), strict=True):
                norm = float(noise.norm())
                p.add_(noise, alpha=SCALE * float(p.norm()) / norm if norm else 0.0)
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(parameters, own, strict=True):
                p.copy_(value)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def _normal(parameters: list[nn.Parameter], random: torch.Generator) -> list[Tensor]:
    """Return normal random numbers of the shapes of the parameters, the same on any device."""
    return [torch.randn(p.shape, generator=random).to(p) for p in parameters]


def _scaled(tensors: list[Tensor], norm: float) -> list[Tensor]:
    factor = norm / _dot(tensors, tensors) ** 0.5
    return [t * factor for t in tensors]


def _dot(first: list[Tensor], second: list[Tensor]) -> float:
    return float(sum((a.double() * b.double()).sum() for a, b in zip(first, second, strict=True)))


def _count(batches: Batches) -> int:
    return sum(len(labels) for _, labels in batches)
