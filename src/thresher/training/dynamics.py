"""Per-sample training dynamics, one value each when the run ends.

EL2N (Paul et al. 2021), forgetting (Toneva et al. 2019), area under the margin (Pleiss et al. 2020)
and dynamic uncertainty (He et al. 2024).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.nn import functional as F

from thresher.data.pack import Pack
from thresher.device_check import host_of
from thresher.distributed.group import Group
from thresher.paths import atomic_file
from thresher.training.split import TrainingSplit

EL2N_EPOCHS = 10
WINDOW_EPOCHS = 10
"""Epochs over which the spread of a probability is taken, as in the paper."""


class EpochTable:
    """What each sample was like in this epoch, (6, n), where the rows are.

    Rows are: seen, loss, error, correct, margin of the label's logit, probability of the label.

    Columns are rows of the loader, zero for samples not seen. A sample is seen at most once an
    epoch, by one worker; the workers' tables are summed at its end.
    """

    def __init__(self, samples: int, group: Group) -> None:
        self.group = group
        self.values = torch.zeros((6, samples), device=host_of(group.device))

    def note(self, rows: Tensor, labels: Tensor, losses: Tensor, logits: Tensor) -> None:
        """Record a batch without waiting for the device, so that a CUDA graph can hold it."""
        with torch.no_grad():
            probabilities = logits.float().softmax(1)
            truth = F.one_hot(labels, logits.shape[1])
            error = (probabilities - truth).norm(dim=1)
            correct = (logits.argmax(1) == labels).float()
            own = logits.float().gather(1, labels[:, None])[:, 0]
            margin = own - (logits.float() - 1e9 * truth).amax(1)
            likely = probabilities.gather(1, labels[:, None])[:, 0]
            seen = torch.ones_like(error)
            columns = torch.stack([seen, losses.float(), error, correct, margin, likely])
            self.values.index_copy_(1, rows, columns.to(self.values.device))

    def summed(self) -> Tensor:
        """Return the sum over all workers on every one, (6, n) on the CPU."""
        return self.group.all_reduce_sum(self.values.clone()).cpu()

    def restore(self, values: Tensor) -> None:
        """Set the sum over all workers: rank 0 takes it, the others start empty."""
        self.values.zero_()
        if self.group.first:
            self.values[: len(values)].copy_(values)  # older checkpoints have four rows


class Dynamics:
    """Accumulates (n,) arrays over the training samples, epoch by epoch."""

    def __init__(self, samples: int) -> None:
        self.el2n_sum = np.zeros(samples, np.float64)
        self.el2n_seen = np.zeros(samples, np.int32)
        self.forgetting = np.zeros(samples, np.int32)
        self.learned_epoch = np.full(samples, -1, np.int32)
        self.was_correct = np.zeros(samples, bool)
        self.loss = np.full(samples, np.nan, np.float32)
        self.epochs_seen = np.zeros(samples, np.int32)
        self.margin_sum = np.zeros(samples, np.float64)
        self.window = np.zeros((WINDOW_EPOCHS, samples), np.float32)
        self.spread_sum = np.zeros(samples, np.float64)

    def end_epoch(self, epoch: int, table: np.ndarray) -> None:
        """Take the values of an epoch: an EpochTable's sum, (6, n)."""
        seen, loss, error, right, margin, likely = table
        seen, right = seen > 0, right > 0
        if epoch < EL2N_EPOCHS:
            self.el2n_sum[seen] += error[seen]
            self.el2n_seen[seen] += 1
        self.forgetting[seen & self.was_correct & ~right] += 1
        self.learned_epoch[seen & right & (self.learned_epoch < 0)] = epoch
        self.was_correct[seen] = right[seen]
        self.loss[seen] = loss[seen]
        (rows,) = np.nonzero(seen)
        self.window[self.epochs_seen[rows] % WINDOW_EPOCHS, rows] = likely[rows]
        self.epochs_seen[rows] += 1
        self.margin_sum[rows] += margin[rows]
        full = rows[self.epochs_seen[rows] >= WINDOW_EPOCHS]
        self.spread_sum[full] += self.window[:, full].std(axis=0, ddof=1)

    def _uncertainty(self, rows: np.ndarray) -> np.ndarray:
        """Return the mean spread over all windows; of few epochs, the spread over them.

        A sample that was seen in one epoch, as with dynamic pruning, has none: NaN.
        """
        windows = self.epochs_seen[rows] - WINDOW_EPOCHS + 1
        spread = self.spread_sum[rows] / np.maximum(windows, 1)
        for epochs in np.unique(self.epochs_seen[rows][windows < 1]):
            short = self.epochs_seen[rows] == epochs
            few = self.window[:epochs, rows[short]]
            spread[short] = few.std(axis=0, ddof=1) if epochs > 1 else np.nan
        return spread

    def state(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    def restore(self, state: dict[str, np.ndarray]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def write(self, path: Path, pack: Pack, split: TrainingSplit) -> None:
        """Write a Parquet table with a row per sample that was trained on, and its label there."""
        (seen,) = np.nonzero(~np.isnan(self.loss))
        where = split.train[seen]
        labels = pack.labels[where] if split.labels is None else split.labels[seen]
        # Not seen in the first epochs, as with dynamic pruning: unknown, and not the easiest.
        scored = np.where(self.el2n_seen[seen] > 0, self.el2n_seen[seen], np.nan)
        epochs = np.maximum(self.epochs_seen[seen], 1)
        table = pa.table(
            {
                "id": pack.ids.take(pa.array(where)),
                "label": pa.array(labels, pa.int32()),
                "el2n": pa.array((self.el2n_sum[seen] / scored).astype(np.float32)),
                "forgetting": pa.array(self.forgetting[seen]),
                "learned_epoch": pa.array(self.learned_epoch[seen]),
                "loss": pa.array(self.loss[seen]),
                "margin": pa.array((self.margin_sum[seen] / epochs).astype(np.float32)),
                "uncertainty": pa.array(self._uncertainty(seen).astype(np.float32)),
            }
        )
        with atomic_file(path) as temporary:
            pq.write_table(table, temporary)
