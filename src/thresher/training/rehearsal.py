"""Before the first step: find how many samples fit, and let DDP lay out its buckets.

A rehearsed step runs on real data and is undone afterwards, to the last bit.
"""

import torch

from thresher.errors import ThresherError
from thresher.progress import say
from thresher.training.parts import bounds, piece_count
from thresher.training.resolved import Resolved
from thresher.training.step import Part, Step, unchanged


def out_of_memory(error: BaseException) -> bool:
    """Whether the device (or the machine) had no room: torch says it in several ways."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "not enough memory" in text or "can't allocate memory" in text
    )


def rehearse(step: Step, resolved: Resolved) -> int:
    """Run and undo a full step; the largest `micro_batch` that fits (0: no limit was needed).

    With --micro-batch auto it is halved until a step fits on every worker.
    """
    config, group = step.config, step.group
    micro = 0 if config.micro_batch == "auto" else config.micro_batch
    if config.micro_batch == "auto":
        micro = _largest(step, resolved)
    if not step.parallel.by_ddp:
        step.parallel.ready()
        return micro
    count = resolved.global_batch
    pieces = piece_count(count, group.world, micro, step.ghost)
    with _undone(step):
        # Twice: the buckets are laid out anew when the second step begins.
        for _ in range(2):
            step.gradients(_part(step, resolved), count, pieces)
    step.parallel.ready()
    return micro


def _largest(step: Step, resolved: Resolved) -> int:
    group, count = step.group, resolved.global_batch
    smallest = step.ghost or 1
    micro = resolved.per_worker_batch
    while True:
        pieces = piece_count(count, group.world, micro, step.ghost)
        if _agree(step, _fits(step, resolved, count, pieces)):
            return micro if pieces > 1 else 0
        if micro <= smallest:
            raise ThresherError(
                f"not even {smallest} sample(s) fit on the {group.device.type}",
                "choose a smaller model, or another device",
            )
        micro = max(smallest, micro // 2)
        say(f"out of memory; trying {micro} samples at once")


def _fits(step: Step, resolved: Resolved, count: int, pieces: int) -> bool:
    try:
        with _undone(step):
            # No reduce: another worker may have failed and would not take part in it.
            with step.parallel.no_sync():
                step.gradients(_part(step, resolved), count, pieces)
            step.optimizer.step()
        return True
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    if step.device.type == "cuda":
        torch.cuda.empty_cache()
    return False


class _undone:
    """`unchanged` for the step's model, optimiser and table."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.inner = unchanged(step.model, step.optimizer)

    def __enter__(self) -> None:
        self.table = None if self.step.table is None else self.step.table.values.clone()
        self.inner.__enter__()

    def __exit__(self, *error: object) -> None:
        self.inner.__exit__(*error)  # type: ignore[arg-type]
        if self.step.table is not None and self.table is not None:
            self.step.table.values.copy_(self.table)


def _part(step: Step, resolved: Resolved) -> Part:
    """The first samples in the loader, in a share such as this worker gets of a full batch."""
    begin, end = bounds(resolved.global_batch, step.group.world, step.ghost)[step.group.rank]
    rows = torch.arange(begin, end, device=step.device)
    if step.loader.images is not None:
        return Part(rows)
    return Part(rows, step.loader.batch(step.loader.positions[begin:end]).images)


def _agree(step: Step, fits: bool) -> bool:
    failed = torch.tensor([0.0 if fits else 1.0], device=step.device)
    return step.group.all_reduce_max(failed).item() == 0
