"""Loss, error and correctness of each sample in the current epoch.

A sample is seen at most once an epoch, by one worker; the workers' tables are summed at its end.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from thresher.distributed.group import Group

COLUMNS = ("seen", "loss", "error", "correct")


class EpochTable:
    """A (4, n) float32 table on the device, by row of the loader; zero for samples not seen."""

    def __init__(self, samples: int, group: Group) -> None:
        self.group = group
        self.values = torch.zeros((len(COLUMNS), samples), device=group.device)

    def note(self, rows: Tensor, labels: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Record a batch without waiting for the device, so that a CUDA graph can hold it."""
        with torch.no_grad():
            probabilities = logits.float().softmax(1)
            truth = F.one_hot(labels, logits.shape[1])
            error = (probabilities - truth).norm(dim=1)
            correct = (logits.argmax(1) == labels).float()
            columns = torch.stack([torch.ones_like(error), losses.float(), error, correct])
            self.values.index_copy_(1, rows, columns)

    def clear(self) -> None:
        """Forget everything, for the next epoch."""
        self.values.zero_()

    def summed(self) -> Tensor:
        """Return the sum over all workers on every one, (4, n) on the CPU."""
        return self.group.all_reduce_sum(self.values.clone()).cpu()

    def restore(self, values: Tensor) -> None:
        """Set the sum over all workers: rank 0 takes it, the others start empty."""
        if self.group.first:
            self.values.copy_(values)
        else:
            self.values.zero_()
