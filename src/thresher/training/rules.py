"""From the global batch to the peak learning rate and the warm-up: pure functions, no torch.

With k = batch / base batch:
  none    rate                 warm-up
  linear  rate × k             warm-up            Goyal et al. 2017
  sqrt    rate × √k            warm-up            Krizhevsky 2014
  legw    rate × √k            warm-up × k        You et al. 2019
"""

import math
from dataclasses import dataclass

from thresher.errors import ThresherError, nearest

RULES = ("none", "linear", "sqrt", "legw")


@dataclass(frozen=True)
class Rate:
    """What a rule gives for one batch size."""

    peak_lr: float
    warmup_epochs: float


def apply(rule: str, lr: float, batch: int, base_batch: int, warmup_epochs: float = 0.0) -> Rate:
    """The peak rate and warm-up at `batch`, when `lr` and `warmup_epochs` suit `base_batch`."""
    if rule not in RULES:
        raise ThresherError(f'there is no rate rule "{rule}"', nearest(rule, RULES))
    if batch < 1 or base_batch < 1:
        raise ThresherError(
            f"a batch of {batch} cannot be compared with a base batch of {base_batch}",
            "both are numbers of samples, from 1 up",
        )
    if lr < 0 or warmup_epochs < 0:
        raise ThresherError(
            f"a rate of {lr} with {warmup_epochs} warm-up epochs makes no sense",
            "neither may be negative",
        )
    k = batch / base_batch
    factor = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}[rule]
    return Rate(lr * factor, warmup_epochs * (k if rule == "legw" else 1.0))
