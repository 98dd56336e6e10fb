"""A pruned loader that goes on with another number of workers."""

from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from gloo_ranks import run_ranks
from thresher.data.sampler import DistributedEpochSampler
from thresher.training.prune import PrunedLoader, prune

N, DROPPED = 40, 5


def pruned(batch: int) -> PrunedLoader:
    positions = np.arange(N)
    positions[DROPPED] = -1
    sampler: Any = DistributedEpochSampler(positions)
    data: Any = range(N)
    return prune(DataLoader(data, batch, sampler=sampler), epochs=4)


def train_epoch(loader: PrunedLoader) -> None:
    for batch in loader:
        loader.loss(batch.double().square().requires_grad_())


def _first_epoch(rank: int, world: int) -> dict[str, Any]:
    loader = pruned(4)
    train_epoch(loader)
    state = loader.state_dict()
    arrays = {name: np.asarray(value) for name, value in state["pruner"].items()}
    return {**state, "pruner": arrays, "samples": np.asarray(state["samples"])}


@pytest.mark.xdist_group("ranks")
def test_the_samples_of_a_selection_are_the_same_on_one_worker_and_on_two() -> None:
    """A sample that a selection drops was counted on two workers, and not on one."""
    states = run_ranks(2, _first_epoch)
    alone = pruned(8)
    train_epoch(alone)
    expected = alone.state_dict()
    for state in states:
        assert DROPPED not in state["samples"]
        assert np.array_equal(state["samples"], expected["samples"])
        assert np.array_equal(state["pruner"]["losses"], expected["pruner"]["losses"])
    resumed = pruned(8)
    resumed.load_state_dict(states[0])
    train_epoch(resumed)
    train_epoch(alone)
    assert resumed.left_out == alone.left_out > 0
