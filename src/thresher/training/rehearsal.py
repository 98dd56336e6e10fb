"""Before the first step: find the micro-batch that fits, compile, let DDP lay out its buckets.

A rehearsed step runs on real data and is undone afterwards.
"""

import logging

import torch
from torch import Tensor

from thresher.errors import ThresherError, first_line, is_out_of_memory
from thresher.training.batches import largest_part
from thresher.training.device_data import Part
from thresher.training.resolved import Resolved
from thresher.training.step import Step
from thresher.training.undo import buffers_kept

logger = logging.getLogger(__name__)


def rehearse(step: Step, resolved: Resolved) -> None:
    """Prepare the exchange; with `micro_batch` auto, halve it until a step fits on every worker."""
    count = max(resolved.batches)
    try:
        _find_micro_batch(step, count)
        rehearsals = max(step.exchange.rehearsals, int(step.config.compile))
        if rehearsals:
            with step.undone():
                for _ in range(rehearsals):
                    step.gradients(step.data.first_part(count, step.align), count)
    except (AssertionError, RuntimeError) as error:  # torch raises both
        if not step.config.compile or is_out_of_memory(error):
            raise
        what = f"{step.config.model} cannot be compiled: {first_line(error)}"
        raise ThresherError(what, "train without --compile") from error
    step.exchange.prepare()


def _find_micro_batch(step: Step, count: int) -> None:
    micro = step.config.micro_batch
    step.micro = _part(step, count) if micro == "auto" else micro
    if micro == "auto":
        while not _fits_everywhere(step, count):
            if not _halve(step):
                raise ThresherError(
                    f"{step.align} sample(s) do not fit on the {step.group.device.type}",
                    "use a smaller model, or another device",
                )
            logger.info("out of memory; trying %d samples at once", step.micro)
        if step.pieces(count) == 1:
            step.micro = None


def resilient_step(step: Step, part: Part, count: int) -> Tensor:
    """Run a step; with `micro_batch` auto on one worker, in smaller pieces if memory runs out."""
    if step.config.micro_batch != "auto" or not step.group.alone:
        return step(part, count)
    while True:
        try:
            with buffers_kept(step.model, on_error_only=True):
                return step(part, count)
        except (RuntimeError, MemoryError) as error:
            step.micro = step.micro or _part(step, count)
            if not is_out_of_memory(error) or not _halve(step):
                raise
        step.optimizer.zero_grad(set_to_none=True)
        _free_memory(step)


def _part(step: Step, count: int) -> int:
    return largest_part(count, step.group.world, step.align)


def _halve(step: Step) -> bool:
    assert step.micro is not None
    possible = step.micro > step.align
    step.micro = max(step.align, step.micro // 2)
    return possible


def _fits_everywhere(step: Step, count: int) -> bool:
    failed = torch.tensor([0.0 if _fits(step, count) else 1.0]).to(step.group.device)
    return step.group.all_reduce_sum(failed).item() == 0


def _fits(step: Step, count: int) -> bool:
    try:
        with step.undone():
            # No exchange: a worker that failed would not take part in it.
            with step.exchange.no_sync():
                step.gradients(step.data.first_part(count, step.align), count)
            step.optimizer.step()
        return True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    _free_memory(step)
    return False


def _free_memory(step: Step) -> None:
    if step.group.device.type != "cpu":
        torch.get_device_module(step.group.device).empty_cache()
