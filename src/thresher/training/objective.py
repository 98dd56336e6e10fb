"""The network and its loss as one module, for DDP and torch.compile."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Objective(nn.Module):
    """Computes the sum of the losses; the caller divides by the global number of samples."""

    def __init__(self, model: nn.Module, label_smoothing: float, per_sample: bool) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.per_sample = per_sample
        self.runs_empty = not any(
            isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) for m in model.modules()
        )
        """Whether the network accepts an empty batch: torch's batch norm does not."""

    def forward(
        self, images: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of the weighted losses, the losses (n,) and the logits (n, classes).

        Without `per_sample` the last two are empty. An empty batch gives a zero that depends on
        every parameter, so that each has a gradient.
        """
        if len(images) == 0 and not self.runs_empty:
            zero = torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
            return zero, images.new_empty(0), images.new_empty(0)
        logits = self.model(images).float() if images.dtype != torch.float64 else self.model(images)
        if not self.per_sample:
            total = F.cross_entropy(
                logits, labels, reduction="sum", label_smoothing=self.label_smoothing
            )
            return total, total.new_empty(0), total.new_empty(0)
        losses = F.cross_entropy(
            logits, labels, reduction="none", label_smoothing=self.label_smoothing
        )
        weighted = losses if weights is None else losses * weights
        return weighted.sum(), losses.detach(), logits.detach()
