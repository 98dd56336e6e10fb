"""How a run is executed: processes, device, threads and precision."""

import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from thresher.distributed.group import Group
from thresher.effect import MANY
from thresher.environment import core_count
from thresher.options import option

if TYPE_CHECKING:
    import torch

SEARCHED = 5000
"""Uses of a kernel from which it pays to search for it: see
benchmarks/results/convolution_search.md."""


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """Processes, device and precision."""

    workers: int = option(1, ge=1, changes_result=False)
    """Worker processes to start on this machine; torchrun and srun start their own."""
    max_restarts: int = option(3, ge=0, changes_result=False, only_with={"workers": MANY})
    """How often workers that died are restarted from the last checkpoint."""
    device: Literal["auto", "cpu", "cuda", "mps"] = option("auto", changes_result=False)
    """auto: an NVIDIA GPU if there is one. mps: that of an Apple computer, after its gradients were
    compared with those of the CPU."""
    threads: int | None = option(None, ge=1, changes_result=False)
    """CPU threads of each worker; by default the cores are divided among the workers."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp64"] = "auto"
    """Arithmetic of forward and backward pass; fp64 also makes the weights double. auto: bf16 on a
    GPU that has it, otherwise fp32."""
    compile: bool = option(False, changes_result=False)
    """Compile the network with torch.compile."""
    graph: Literal["auto", "on", "off"] = option("auto", changes_result=False)
    """Capture training steps in a CUDA graph; auto: where possible."""
    deterministic: bool = False
    """On a GPU: the same command gives the same bits twice, with slower kernels. On a CPU it
    always does, with the same number of threads."""


def weight_dtype(config: ExecutionConfig) -> "torch.dtype":
    """Return the type of weights, images and losses."""
    import torch

    return torch.float64 if config.precision == "fp64" else torch.float32


def autocast(config: ExecutionConfig, device: "torch.device") -> AbstractContextManager[Any]:
    """Return the context of forward passes in reduced precision."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(config.precision)
    if dtype is None:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype)


@contextlib.contextmanager
def cpu_kernels(precision: str, device: "torch.device") -> Iterator[None]:
    """Keep oneDNN off in the block if it has no kernels for the precision on this CPU.

    Otherwise torch switches it off in the first matrix product, for the rest of the process: later
    runs would differ in their last digits, and a resumed run from the unbroken one.
    """
    import torch

    onednn: Any = torch.backends.mkldnn
    enabled = onednn.enabled
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported", None)
    if device.type == "cpu" and supported is not None and not supported():
        onednn.enabled = False
    try:
        yield
    finally:
        onednn.enabled = enabled


@contextlib.contextmanager
def torch_settings(config: ExecutionConfig, group: Group) -> Iterator[None]:
    """Set threads and kernel selection for a run; restore them and torch's random numbers."""
    import torch

    threads = torch.get_num_threads()
    benchmark, fixed = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    elif group.local_world > 1 and group.device.type == "cpu":
        torch.set_num_threads(max(1, core_count() // group.local_world))
    # The fastest kernel of a measurement is not the same one every time.
    torch.backends.cudnn.benchmark = group.device.type == "cuda" and not config.deterministic
    if config.deterministic:
        if group.device.type == "cuda":
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS asks for
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)
    try:
        forked = torch.random.fork_rng([group.device] if group.device.type == "cuda" else [])
        with warnings.catch_warnings(), cpu_kernels(config.precision, group.device), forked:
            # Older torch lacks the recommended replacement. The strides are those of weights with
            # one input channel, where the order has no meaning.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        torch.backends.cudnn.deterministic = fixed
        if config.deterministic:  # which imports torch's compiler, in two seconds
            torch.use_deterministic_algorithms(was_deterministic)


@contextlib.contextmanager
def kernel_search(uses: float) -> Iterator[None]:
    """Let cuDNN try several kernels for each convolution in the block, if they are used often.

    Otherwise it takes the one that it recommends.
    """
    import torch

    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before and uses >= SEARCHED
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def seed_step(seed: int, step: int, group: Group) -> None:
    """Seed what a network draws in a step, as dropout does: a function of seed, step and worker.

    A resumed run then draws the same numbers, and so does a run after others in one process.
    """
    import numpy as np
    import torch

    from thresher.data.hashing import hash_bits

    value = int(hash_bits(np.array([group.rank]), step, seed)[0]) & 0xFFFF_FFFF
    torch.default_generator.manual_seed(value)
    if group.device.type != "cpu":
        torch.get_device_module(group.device).manual_seed(value)


def free_device_memory(config: ExecutionConfig) -> None:
    """Free captured graphs and cached memory of a run that nothing refers to any more."""
    import torch

    if not torch.cuda.is_initialized():
        return
    if config.compile:
        compiler: Any = torch._dynamo
        compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
