"""Before the first step: find the micro-batch that fits, and let DDP lay out its buckets.

A rehearsed step runs on real data and is undone afterwards.
"""

import logging

import torch

from thresher.errors import ThresherError
from thresher.training.batches import piece_count
from thresher.training.resolved import Resolved
from thresher.training.step import Step

logger = logging.getLogger(__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the machine ran out of memory; torch has several messages."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "not enough memory" in text or "can't allocate memory" in text
    )


def rehearse(step: Step, resolved: Resolved) -> int | None:
    """Prepare the exchange; return the micro-batch to use (None: no limit).

    With `micro_batch` auto it is halved until a step fits on every worker.
    """
    micro = step.config.micro_batch
    if micro == "auto":
        micro = _largest_micro_batch(step, resolved)
    if step.exchange.rehearsals:
        count = resolved.global_batch
        pieces = piece_count(count, step.group.world, micro, step.align)
        with step.undone():
            for _ in range(step.exchange.rehearsals):
                step.gradients(step.data.first_part(count, step.align), count, pieces)
    step.exchange.prepare()
    return micro


def _largest_micro_batch(step: Step, resolved: Resolved) -> int | None:
    micro = resolved.per_worker_batch
    while True:
        pieces = piece_count(resolved.global_batch, step.group.world, micro, step.align)
        if _fits_everywhere(step, resolved.global_batch, pieces):
            return micro if pieces > 1 else None
        if micro <= step.align:
            raise ThresherError(
                f"{step.align} sample(s) do not fit on the {step.group.device.type}",
                "use a smaller model, or another device",
            )
        micro = max(step.align, micro // 2)
        logger.info("out of memory; trying %d samples at once", micro)


def _fits_everywhere(step: Step, count: int, pieces: int) -> bool:
    failed = torch.tensor([0.0 if _fits(step, count, pieces) else 1.0], device=step.group.device)
    return step.group.all_reduce_sum(failed).item() == 0


def _fits(step: Step, count: int, pieces: int) -> bool:
    try:
        with step.undone():
            # No exchange: a worker that failed would not take part in it.
            with step.exchange.no_sync():
                step.gradients(step.data.first_part(count, step.align), count, pieces)
            step.optimizer.step()
        return True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if step.group.device.type == "cuda":
        torch.cuda.empty_cache()
    return False
