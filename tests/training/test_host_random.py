"""Draws on the host are noticed; draws from a generator of one's own are not."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from thresher.training.graph import host_random_state

DRAWS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(()),
    "python": random.random,
    "numpy": np.random.random,
    "numpy-normal": np.random.standard_normal,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_changes_the_state(draw: Callable[[], object]) -> None:
    for _ in range(3):  # numpy makes normal numbers in pairs
        before = host_random_state()
        assert before == host_random_state()
        draw()
        assert before != host_random_state()


def test_a_generator_of_its_own_does_not() -> None:
    before = host_random_state()
    torch.rand((), generator=torch.Generator().manual_seed(0))
    np.random.default_rng(0).random()
    random.Random(0).random()
    assert before == host_random_state()
