"""The state of the generators on the host, to notice that a network draws from them.

A CUDA graph holds what the host did while it was captured: a layer that was skipped then by a draw
on the host would be skipped in every step.
"""

import random

import numpy as np
import torch


def host_random_state() -> tuple[object, ...]:
    """Return what changes whenever torch, numpy or Python draws a number on the host."""
    _, words, at, *gauss = np.random.get_state()
    drawn = torch.get_rng_state().numpy().tobytes()
    return drawn, random.getstate(), np.asarray(words).tobytes(), at, *gauss
