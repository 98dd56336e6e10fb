"""Time each layer of a model, forward and backward, in real training steps."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, quantiles
from typing import Any, TypeVar

import torch
from torch import nn

from thresher.plain_optimizers import SGD
from thresher.progress import bar
from thresher.scaling.profile import BatchTimes, Layer
from thresher.scaling.synthetic import SyntheticBatch
from thresher.training.execution import cpu_kernels

T = TypeVar("T")
Statistic = Callable[[Iterable[float]], float]
Mark = Any
"""A time: seconds, or an event of the GPU."""


class _Clock:
    """Time marks: the wall clock on a CPU, events in the stream of a GPU (read after the step)."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Mark:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Mark, end: Mark) -> float:
        return begin.elapsed_time(end) / 1e3 if self.cuda else end - begin

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


class _LayerHooks:
    """Hooks on the leaf modules of a model that mark when each begins and ends in a step.

    Backward: a hook on a layer's output fires when the gradient with respect to it is ready, which
    is when the layer's own backward begins; the mark of the next layer ends it. The times of the
    layers therefore add up to the whole backward pass, with operations between modules (additions)
    attributed to the earlier layer.
    """

    def __init__(self, model: nn.Module, clock: _Clock) -> None:
        self.model, self.clock = model, clock
        self.modules = dict(leaf_modules(model))
        self.begin: dict[str, Mark] = {}
        self.end: dict[str, Mark] = {}
        self.backward: dict[str, Mark] = {}
        """In the order in which the gradients became ready."""
        self.output: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> "_LayerHooks":
        self.handles: list[Any] = []
        for name, module in self.modules.items():
            self.handles += [
                module.register_forward_pre_hook(partial(self._begin, name)),
                module.register_forward_hook(partial(self._end, name)),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def clear(self) -> None:
        for marks in (self.begin, self.end, self.backward):
            marks.clear()

    def _begin(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.begin[name] = self.clock.mark()

    def _end(self, name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.end[name] = self.clock.mark()
        if isinstance(output, torch.Tensor):
            self.output[name] = tuple(output.shape)
            if output.requires_grad:
                output.register_hook(partial(self._gradient, name))

    def _gradient(self, name: str, gradient: torch.Tensor) -> None:
        self.backward.pop(name, None)  # a layer that is called twice counts from its last mark
        self.backward[name] = self.clock.mark()

    def seconds(self, end: Mark) -> tuple[dict[str, float], dict[str, float]]:
        """Return the forward and backward seconds by layer, if the backward pass ended at `end`."""
        between = self.clock.between
        ends = [*list(self.backward.values())[1:], end]
        backward = zip(self.backward.items(), ends, strict=False)
        return (
            {name: between(self.begin[name], mark) for name, mark in self.end.items()},
            {name: between(mark, after) for (name, mark), after in backward},
        )


@dataclass
class _StepTimes:
    forward: dict[str, float]
    """Seconds by layer."""
    backward: dict[str, float]
    whole: list[float]
    """Forward (with the loss), backward, optimizer, and all of it."""


def leaf_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules without children, by name."""
    return [(n, m) for n, m in model.named_modules() if next(m.children(), None) is None]


def trainable(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def flops_of(module: nn.Module, output: tuple[int, ...]) -> float:
    """Return the forward operations per image of a convolution or linear layer with that shape of
    output, the batch first; 0 for other layers."""
    if isinstance(module, nn.Conv2d) and len(output) == 4:
        per_output = module.in_channels // module.groups * module.kernel_size[0]
        return 2.0 * per_output * module.kernel_size[1] * output[1] * output[2] * output[3]
    if isinstance(module, nn.Linear):
        return 2.0 * module.in_features * module.out_features * math.prod(output[1:-1])
    return 0.0


def batches_down(batch: int) -> list[int]:
    """Return B, B/2, B/4 … 1."""
    sizes = [batch]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def time_layers(
    model: nn.Module,
    batch: SyntheticBatch,
    device: torch.device,
    precision: str = "fp32",
    seconds_per_batch: float = 1.0,
    batches: Sequence[int] | None = None,
    statistic: Statistic = median,
) -> tuple[tuple[Layer, ...], tuple[BatchTimes, ...]]:
    """Time every leaf module, in forward order, and the step at several batch sizes.

    The steps are real: the model is moved and its weights change, so pass a copy.

    Args:
        model: The network.
        batch: Shape of the images, and the largest batch size B.
        device: Where to run.
        precision: "fp32", "bf16" or "fp16".
        seconds_per_batch: How long to repeat each batch size (three steps at least).
        batches: Batch sizes; B, B/2 … 1 by default.
        statistic: Summary of the repetitions; `min` suits a machine with other load.
    """
    # The same memory layout as in training.
    model = model.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = SGD(model.parameters(), lr=1e-6, momentum=0.9)
    sizes = batches or batches_down(batch.batch_size)
    timed: dict[int, list[_StepTimes]] = {}
    with (
        _LayerHooks(model, _Clock(device)) as hooks,
        bar("timing layers", len(sizes), "batch sizes") as shown,
        cpu_kernels(precision, device),
    ):
        for size in sizes:
            shown.note(f"batch {size}")
            steps = _steps(hooks, optimizer, replace(batch, batch_size=size), device, precision)
            timed[size] = list(repeated(steps, seconds_per_batch))
            shown.advance()
        layers = tuple(_layer(name, hooks, timed, statistic) for name in hooks.end)
    return layers, tuple(_batch_times(size, steps, statistic) for size, steps in timed.items())


def repeated(steps: Iterator[T], seconds: float) -> Iterator[T]:
    """Yield steps for `seconds`: at least 3, at most 50, after one step of warm-up."""
    next(steps)
    begin = time.perf_counter()
    for count, step in enumerate(steps, start=1):
        yield step
        if count >= 50 or (count >= 3 and time.perf_counter() - begin > seconds):
            return


def _steps(
    hooks: _LayerHooks,
    optimizer: torch.optim.Optimizer,
    batch: SyntheticBatch,
    device: torch.device,
    precision: str,
) -> Iterator[_StepTimes]:
    clock, model = hooks.clock, hooks.model
    images, labels = batch.tensors(device)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    with frozen_norms(model, batch.batch_size):
        while True:
            hooks.clear()
            optimizer.zero_grad(set_to_none=True)
            clock.synchronize()
            begin = clock.mark()
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                loss = nn.functional.cross_entropy(model(images), labels)
            forward = clock.mark()
            loss.backward()
            backward = clock.mark()
            optimizer.step()
            end = clock.mark()
            clock.synchronize()
            spans = ((begin, forward), (forward, backward), (backward, end), (begin, end))
            yield _StepTimes(*hooks.seconds(backward), [clock.between(a, b) for a, b in spans])


@contextlib.contextmanager
def frozen_norms(model: nn.Module, batch: int) -> Iterator[None]:
    """Put batch norm into evaluation mode in the block if the batch is one sample.

    It refuses to train on one value per channel, and does the same work except for the statistics.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    frozen = norms if batch == 1 else []
    for module in frozen:
        module.eval()
    try:
        yield
    finally:
        for module in frozen:
            module.train()


def _layer(
    name: str, hooks: _LayerHooks, timed: dict[int, list[_StepTimes]], statistic: Statistic
) -> Layer:
    module, output = hooks.modules[name], hooks.output.get(name, ())
    return Layer(
        name=name,
        kind=type(module).__name__,
        parameters=trainable(module),
        flops=flops_of(module, output),
        activation_bytes=4.0 * math.prod(output[1:]),
        forward_s={n: statistic(s.forward.get(name, 0.0) for s in timed[n]) for n in timed},
        backward_s={n: statistic(s.backward.get(name, 0.0) for s in timed[n]) for n in timed},
    )


def _batch_times(batch: int, steps: list[_StepTimes], statistic: Statistic) -> BatchTimes:
    forward, backward, optimizer, whole = (
        statistic(step.whole[index] for step in steps) for index in range(4)
    )
    spread = spread_of([step.whole[3] for step in steps])
    return BatchTimes(batch, forward, backward, optimizer, whole, spread)


def spread_of(steps: Sequence[float]) -> float:
    """Return the relative interquartile range of seconds over 1.35: `BatchTimes.spread`."""
    low, middle, high = quantiles(steps, n=4)
    return (high - low) / 1.35 / middle
