"""The network of a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thresher.errors import InvalidValueError
from thresher.options import option

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from thresher.data.pack import Pack


INITIAL_IMAGES = 5000
"""Training images that a network with data-dependent layers is initialised with."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network and its loss."""

    model: str = "tiny"
    """tiny, resnet20, resnet18, resnet18-cifar, timm:NAME, torchvision:NAME or package.mod:f."""
    weights: str | None = None
    """Initial weights (safetensors, a state dict or Lightning's .ckpt); a head of another size is
    replaced."""
    batch_norm: str = "local"
    """Statistics of each worker's part (local), the global batch (sync), groups of N samples
    (ghost:N) or of an N-th of the batch (ghost:1/N)."""
    label_smoothing: float = option(0.0, ge=0, lt=1)
    """Share of the target that is spread over all classes."""


def build_model(
    config: ModelConfig, pack: "Pack", seed: int, sides: tuple[int, int]
) -> "nn.Module":
    """Build the network on the CPU; the same seed gives the same weights in any process.

    `sides` are height and width of the images that it is trained on.
    """
    import torch

    from thresher.models import registry

    channels = pack.image_shape[2] if pack.image_shape else 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return registry.build(config.model, len(pack.classes), channels, config.weights, sides)


def initialize_from_data(
    model: "nn.Module", config: ModelConfig, pack: "Pack", positions: "np.ndarray", augment: Any
) -> None:
    """Call `model.initialize(images)`, if it has that, with some training images.

    Networks with layers that depend on the data (whitening) set them there. The images are
    normalised as in evaluation, (n, channels, height, width).
    """
    import torch

    if hasattr(model, "initialize") and config.weights is None:
        images = pack.images(positions[:INITIAL_IMAGES], size=getattr(config, "image_size", None))
        initialize: Any = model.initialize
        initialize(augment.evaluate(torch.from_numpy(images)))


def check_model(
    model: "nn.Module", name: str, shape: tuple[int, int, int], classes: int, alone: bool
) -> None:
    """Refuse a network that does not map images of `shape` to one logit per class.

    With several workers also one whose output does not depend on all of its parameters, which DDP
    would wait for. Networks of Thresher are known to work.
    """
    import torch

    from thresher.models.lazy import failed_on
    from thresher.models.registry import MODELS
    from thresher.training.undo import buffers_kept

    if name in MODELS.built_in:
        return
    images, model = torch.zeros(2, *shape), model.train()
    with torch.random.fork_rng(devices=[]), buffers_kept(model), torch.set_grad_enabled(not alone):
        try:
            logits = model(images)
        except (RuntimeError, ValueError) as error:
            raise failed_on(shape, name, error) from error
        given = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        if given != (2, classes):
            raise InvalidValueError(
                f'model "{name}" returns {given} for 2 images of {classes} classes',
                f"return logits of shape (2, {classes}), also in training mode",
            )
        if alone:
            return
        logits.sum().backward()
    trained = {key: p for key, p in model.named_parameters() if p.requires_grad}
    unused = next((key for key, p in trained.items() if p.grad is None), None)
    model.zero_grad(set_to_none=True)
    if unused is not None:
        raise InvalidValueError(
            f'the output of model "{name}" does not depend on its parameter "{unused}"',
            "train it on one worker, or set requires_grad of that parameter to False",
        )
