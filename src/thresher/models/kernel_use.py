"""When layers use our Triton kernels instead of torch's operations."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from thresher.environment import builds_gpu_kernels

LARGE = 1 << 24
"""Values of a layer's input from which its time on a GPU is longer than the launch of our kernels
from Python, about twice that of torch's. In a captured step launches take no time."""
_captured: ContextVar[bool] = ContextVar("captured", default=False)


@contextlib.contextmanager
def in_captured_steps() -> Iterator[None]:
    """Say that the steps in the block are captured in a CUDA graph, or warm up for it."""
    token = _captured.set(True)
    try:
        yield
    finally:
        _captured.reset(token)


def steps_are_captured() -> bool:
    """Return whether this is a step that is captured, or warms up for it."""
    return _captured.get()


def runs_by_kernel(x: Tensor) -> bool:
    """Whether our kernels for images with channels last take x, and save time."""
    return (
        kernel_works(x)
        and (steps_are_captured() or x.numel() >= LARGE)
        and x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def kernel_works(x: Tensor) -> bool:
    """Whether kernels for GPUs take x; compiled code fuses torch's operations itself."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    usual = x.is_cuda and x.dtype in kinds and x.numel() > 0
    return usual and builds_gpu_kernels() and not torch.compiler.is_compiling()
