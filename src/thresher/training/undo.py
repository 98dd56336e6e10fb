"""Run something on a model and undo it afterwards, in place and to the last bit."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from thresher.models.batch_norm import GhostBatchNorm


@contextlib.contextmanager
def kept(tensors: list[Tensor]) -> Iterator[None]:
    """Put the same values back after the block."""
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        _restore(tensors, before)


@contextlib.contextmanager
def buffers_kept(model: nn.Module, on_error_only: bool = False) -> Iterator[None]:
    """Undo what the block (or, with `on_error_only`, a failed block) does to running statistics."""
    before = [buffer.clone() for buffer in model.buffers()]
    undo = True
    try:
        yield
        undo = not on_error_only
    finally:
        if undo:
            _restore(list(model.buffers()), before)
            forget_ghost_sums(model)


@contextlib.contextmanager
def undone(model: nn.Module, optimizer: torch.optim.Optimizer, *others: Tensor) -> Iterator[None]:
    """Restore parameters, buffers, optimizer state and `others` after the block.

    State that the optimizer made meanwhile is set to zero, the initial value of momenta and
    counters; its memory stays, because a captured graph may refer to it.
    """
    state = {id(value): value.clone() for value in optimizer_tensors(optimizer)}
    try:
        with kept([*model.parameters(), *model.buffers(), *others]):
            yield
    finally:
        with torch.no_grad():
            for value in optimizer_tensors(optimizer):
                if id(value) in state:
                    value.copy_(state[id(value)])
                else:
                    value.zero_()
        optimizer.zero_grad(set_to_none=True)
        forget_ghost_sums(model)


@torch.no_grad()
def _restore(tensors: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def forget_ghost_sums(model: nn.Module) -> None:
    """Clear what ghost batch norm sums up until the end of a step, which does not come here."""
    for module in model.modules():
        if isinstance(module, GhostBatchNorm):
            module.forget_sums()


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return every tensor of the optimizer's state; LAMB counts its steps in the groups."""
    owners = [*optimizer.state.values(), *optimizer.param_groups]
    return [v for owner in owners for v in owner.values() if isinstance(v, Tensor)]
