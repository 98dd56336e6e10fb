"""Per-sample training dynamics: EL2N (Paul et al. 2021) and forgetting (Toneva et al. 2019)."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional as F

from thresher.data.pack import Pack
from thresher.distributed.group import Group
from thresher.paths import atomic_file

EL2N_EPOCHS = 10


class EpochTable:
    """Seen, loss, error and correctness of each sample in this epoch, (4, n) on the device.

    Columns are rows of the loader, zero for samples not seen. A sample is seen at most once an
    epoch, by one worker; the workers' tables are summed at its end.
    """

    def __init__(self, samples: int, group: Group) -> None:
        self.group = group
        self.values = torch.zeros((4, samples), device=group.device)

    def note(self, rows: Tensor, labels: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Record a batch without waiting for the device, so that a CUDA graph can hold it."""
        with torch.no_grad():
            probabilities = logits.float().softmax(1)
            truth = F.one_hot(labels, logits.shape[1])
            error = (probabilities - truth).norm(dim=1)
            correct = (logits.argmax(1) == labels).float()
            columns = torch.stack([torch.ones_like(error), losses.float(), error, correct])
            self.values.index_copy_(1, rows, columns)

    def summed(self) -> Tensor:
        """Return the sum over all workers on every one, (4, n) on the CPU."""
        return self.group.all_reduce_sum(self.values.clone()).cpu()

    def restore(self, values: Tensor) -> None:
        """Set the sum over all workers: rank 0 takes it, the others start empty."""
        self.values.zero_()
        if self.group.first:
            self.values.copy_(values)


class Dynamics:
    """Accumulates (n,) arrays over the training samples, epoch by epoch."""

    def __init__(self, samples: int) -> None:
        self.el2n_sum = np.zeros(samples, np.float64)
        self.el2n_seen = np.zeros(samples, np.int32)
        self.forgetting = np.zeros(samples, np.int32)
        self.learned_epoch = np.full(samples, -1, np.int32)
        self.was_correct = np.zeros(samples, bool)
        self.loss = np.full(samples, np.nan, np.float32)

    def end_epoch(self, epoch: int, table: np.ndarray) -> None:
        """Take the losses, errors and hits of an epoch: an EpochTable's sum, (4, n)."""
        seen, loss, error, right = table
        seen, right = seen > 0, right > 0
        if epoch < EL2N_EPOCHS:
            self.el2n_sum[seen] += error[seen]
            self.el2n_seen[seen] += 1
        self.forgetting[seen & self.was_correct & ~right] += 1
        self.learned_epoch[seen & right & (self.learned_epoch < 0)] = epoch
        self.was_correct[seen] = right[seen]
        self.loss[seen] = loss[seen]

    def state(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def write(self, path: Path, pack: Pack, positions: np.ndarray) -> None:
        """Write a Parquet table with a row per sample that was trained on."""
        (seen,) = np.nonzero(~np.isnan(self.loss))
        where = positions[seen]
        scored = np.maximum(self.el2n_seen[seen], 1)
        table = pa.table(
            {
                "id": pack.ids.take(pa.array(where)),
                "label": pa.array(pack.labels[where], pa.int32()),
                "el2n": pa.array((self.el2n_sum[seen] / scored).astype(np.float32)),
                "forgetting": pa.array(self.forgetting[seen]),
                "learned_epoch": pa.array(self.learned_epoch[seen]),
                "loss": pa.array(self.loss[seen]),
            }
        )
        with atomic_file(path) as temporary:
            pq.write_table(table, temporary)
