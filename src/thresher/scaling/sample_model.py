"""How many samples a batch size needs to reach a target, and at which learning rate.

With the critical batch B_crit, reaching a target takes S = S_min(1 + B_crit/B) steps and
E = E_min(1 + B/B_crit) samples, which is (S/S_min − 1)(E/E_min − 1) = 1.
"""

import math
from dataclasses import dataclass

WARMUP = 0.01
WARMUP_BATCH = 256
"""Warm-up is `WARMUP` of the epochs times √(B/256): 5 of 90 epochs at 7,680, 10 at 30,720."""
WARMUP_MOST = 0.2


def rate_at(batch: float, critical: float, base_batch: float, base_lr: float) -> float:
    """Return ε(B) = ε_max/(1 + B_crit/B): linear in the batch while it is small, then flat."""
    return base_lr * (1 + critical / base_batch) / (1 + critical / batch)


@dataclass(frozen=True)
class SampleModel:
    """Samples to the target by batch size, from one batch size that was measured."""

    critical_batch: float
    samples: float
    """Samples to the target at `batch_size`."""
    batch_size: int
    lr: float
    """A learning rate that works at `batch_size`."""
    train_samples: int

    @property
    def samples_min(self) -> float:
        """E_min: samples to the target at the smallest batch."""
        return self.samples / (1 + self.batch_size / self.critical_batch)

    def samples_at(self, batch: float) -> float:
        """Return the samples to the target, E(B) = E_min(1 + B/B_crit)."""
        return self.samples_min * (1 + batch / self.critical_batch)

    def rate_at(self, batch: float) -> float:
        """Return the learning rate at a batch size."""
        return rate_at(batch, self.critical_batch, self.batch_size, self.lr)

    def warmup_at(self, batch: float) -> float:
        """Return the epochs of warm-up at a batch size."""
        epochs = self.samples_at(batch) / self.train_samples
        return epochs * min(WARMUP_MOST, WARMUP * math.sqrt(batch / WARMUP_BATCH))
