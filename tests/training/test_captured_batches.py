"""What a captured step looks up on the device, without a graph: the batches of an epoch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from thresher.data.order import epoch_order
from thresher.data.pack import Pack
from thresher.distributed.group import Group, Placement
from thresher.training.config import TrainConfig
from thresher.training.device_data import DeviceData
from thresher.training.epochs import EpochPlan
from thresher.training.graph import Batches
from thresher.training.split import split_samples

pytest_plugins = ["train_data"]


@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("batch", [64, 31])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_worker_looks_up_its_own_part(few: Path, world: int, batch: int, align: int) -> None:
    """The same rows as an eager step has, for full batches (64) and the last one (31 of 287)."""
    config, pack = TrainConfig(data=str(few), out="-"), Pack.open(few)
    split = split_samples(config, pack)
    order = epoch_order(len(split.train), seed=1, epoch=0)
    cuts = [(begin, min(begin + 64, len(order))) for begin in range(0, len(order), 64)]
    plan = EpochPlan(order, cuts, [0.1 * number for number in range(len(cuts))])
    numbers = [n for n, (begin, end) in enumerate(cuts) if end - begin == batch]
    seen: list[list[np.ndarray]] = [[] for _ in numbers]
    for rank in range(world):
        group = Group(Placement(rank, world), torch.device("cpu"))
        data = DeviceData(config, pack, split, group, weighted=False)
        parts = list(data.parts(order, cuts, align))
        batches = Batches(data, batch, len(numbers), align)
        assert len(batches.part().rows) == len(parts[numbers[0]].rows)
        batches.begin(plan)
        for rows, number in zip(seen, numbers, strict=True):
            part = batches.part()
            assert torch.equal(part.rows, parts[number].rows)
            assert batches.number().tolist() == [number]
            assert float(batches.rate()) == pytest.approx(plan.rates[number])
            rows.append(part.rows.numpy())
            batches.at += 1
    for rows, number in zip(seen, numbers, strict=True):
        assert np.array_equal(np.concatenate(rows), order[slice(*cuts[number])])
