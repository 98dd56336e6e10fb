"""Peak learning rate and warm-up at a batch size, from those of a base batch size.

With k = batch / base batch:
  none    lr                   warm-up
  linear  lr × k               warm-up            Goyal et al. 2017
  sqrt    lr × √k              warm-up            Krizhevsky 2014
  legw    lr × √k              warm-up × k        You et al. 2019
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from thresher.errors import InvalidValueError, nearest

Rule = Literal["none", "linear", "sqrt", "legw"]
RULES = get_args(Rule)


@dataclass(frozen=True)
class Rate:
    """The peak learning rate and the warm-up at one batch size."""

    peak_lr: float
    warmup_epochs: float


def apply(rule: str, lr: float, batch: int, base_batch: int, warmup_epochs: float = 0.0) -> Rate:
    """Return the rate at `batch` if `lr` and `warmup_epochs` belong to `base_batch`."""
    if rule not in RULES:
        raise InvalidValueError(f'unknown rate rule "{rule}"', nearest(rule, RULES), "rule")
    for name, value, least in (("batch", batch, 1), ("base_batch", base_batch, 1), ("lr", lr, 0)):
        if value < least:
            raise InvalidValueError(f"{name} must be at least {least}, got {value}", "", name)
    k = batch / base_batch
    factor = {"none": 1.0, "linear": k, "sqrt": math.sqrt(k), "legw": math.sqrt(k)}[rule]
    return Rate(lr * factor, warmup_epochs * (k if rule == "legw" else 1.0))
