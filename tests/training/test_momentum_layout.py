"""A checkpoint holds tensors row by row; the optimiser gets them back in its parameters' layout."""

from pathlib import Path

import torch

from thresher.training.checkpoint import (
    Checkpoint,
    newest,
    pack_optimizer,
    unpack_optimizer,
    write,
)


def _network() -> tuple[torch.nn.Conv2d, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer: torch.nn.Conv2d = torch.nn.Conv2d(3, 4, 3)
    layer.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return layer, torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)


def test_momenta_come_back_channels_last(tmp_path: Path) -> None:
    layer, optimizer = _network()
    layer(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    before = optimizer.state[layer.weight]["momentum_buffer"].clone()
    tensors, plain = pack_optimizer(optimizer)
    write(tmp_path, 1, Checkpoint({}, tensors))
    read = newest(tmp_path)
    assert read is not None
    again, fresh = _network()
    unpack_optimizer(fresh, read, plain)
    momentum = fresh.state[again.weight]["momentum_buffer"]
    assert torch.equal(momentum, before)
    assert momentum.stride() == again.weight.stride()
    assert momentum.stride() != momentum.contiguous().stride(), "the test must see a difference"
