"""Time each layer of a model, forward and backward, in real training steps."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn

from thresher.progress import bar
from thresher.scaling.profile import BatchTimes, Layer

Statistic = Callable[[Iterable[float]], float]


class _Clock:
    """Marks in time: wall clock on a CPU, events in the stream of a GPU (read after the step)."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another, after `settle`."""
        return begin.elapsed_time(end) / 1e3 if self.cuda else end - begin

    def settle(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


@dataclass
class _Seen:
    """What one step's hooks saw of one leaf module."""

    module: nn.Module
    begin: Any = None
    end: Any = None
    backward: Any = None
    output: tuple[int, ...] = ()
    input: tuple[int, ...] = ()


@dataclass
class Watch:
    """Hooks on the leaf modules of a model that note when each begins and ends.

    Backward: a hook on a layer's output fires when the gradient with respect to it is there, which
    is when that layer's own backward begins; the next layer's mark ends it. So the layers' times
    add up to the whole backward pass, with the additions between them on the earlier layer.
    """

    model: nn.Module
    clock: _Clock
    seen: dict[str, _Seen] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    def __enter__(self) -> "Watch":
        for name, module in self.model.named_modules():
            if next(module.children(), None) is not None:
                continue
            self.seen[name] = _Seen(module)
            self.handles += [
                module.register_forward_pre_hook(self._begin(name)),
                module.register_forward_hook(self._end(name)),
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def clear(self) -> None:
        self.order.clear()
        for seen in self.seen.values():
            seen.begin = seen.end = seen.backward = None

    def _begin(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            self.seen[name].begin = self.clock.mark()

        return hook

    def _end(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            seen = self.seen[name]
            seen.end = self.clock.mark()
            if name not in self.order:
                self.order.append(name)
            if isinstance(output, torch.Tensor):
                seen.output = tuple(output.shape)
                seen.input = tuple(inputs[0].shape) if inputs else ()
                if output.requires_grad:
                    output.register_hook(lambda _: self._arrived(seen))

        return hook

    def _arrived(self, seen: _Seen) -> None:
        seen.backward = self.clock.mark()


@dataclass
class _Step:
    forward: dict[str, float]
    backward: dict[str, float]
    whole: tuple[float, float, float, float]
    """Seconds forward (with the loss), backward, optimiser, and all of it."""


def flops_of(module: nn.Module, output: tuple[int, ...]) -> float:
    """Forward operations per image of a convolution or a linear layer; 0 for the others."""
    if isinstance(module, nn.Conv2d) and len(output) == 4:
        per_output = module.in_channels // module.groups * module.kernel_size[0]
        return 2.0 * per_output * module.kernel_size[1] * output[1] * output[2] * output[3]
    if isinstance(module, nn.Linear):
        rows = 1
        for length in output[1:-1]:
            rows *= length
        return 2.0 * module.in_features * module.out_features * rows
    return 0.0


def batches_down(batch: int) -> list[int]:
    """B, B/2, B/4 … 1 (claim K2)."""
    found = [batch]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def time_layers(
    model: nn.Module,
    shape: tuple[int, int, int],
    classes: int,
    batch_size: int,
    device: torch.device,
    precision: str = "fp32",
    seconds_per_batch: float = 1.0,
    batches: list[int] | None = None,
    statistic: Statistic = median,
) -> tuple[list[Layer], list[BatchTimes]]:
    """Median times of every leaf module and of the step, at B, B/2 … 1.

    `shape` is (channels, height, width). Each batch is repeated for about `seconds_per_batch`,
    three times at least; the model's weights move meanwhile (it is a real step), so give a copy.
    """
    # As training lays them out.
    model = model.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    clock = _Clock(device)
    wanted = batches or batches_down(batch_size)
    gathered: dict[int, list[_Step]] = {}
    with Watch(model, clock) as watch, bar("timing layers", len(wanted), "batch sizes") as shown:
        for batch in wanted:
            shown.note(f"batch {batch}")
            steps = _steps(watch, optimiser, shape, classes, batch, device, precision)
            gathered[batch] = list(_until(steps, seconds_per_batch))
            shown.advance()
        layers = [
            _layer(name, watch.seen[name], gathered, statistic)
            for name in watch.order
            if name in watch.seen
        ]
    return layers, [_batch_times(batch, steps, statistic) for batch, steps in gathered.items()]


def _until(steps: Iterator[_Step], seconds: float) -> Iterator[_Step]:
    """At least three steps, then until the time is used up, 50 at most; the first is warm-up."""
    next(steps)
    begun = time.perf_counter()
    for count, step in enumerate(steps, start=1):
        yield step
        if count >= 50 or (count >= 3 and time.perf_counter() - begun > seconds):
            return


def _steps(
    watch: Watch,
    optimiser: torch.optim.Optimizer,
    shape: tuple[int, int, int],
    classes: int,
    batch: int,
    device: torch.device,
    precision: str,
) -> Iterator[_Step]:
    clock, model = watch.clock, watch.model
    images = torch.randn(batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    # Batch normalisation over one value per channel is refused in training; evaluation does the
    # same work for such a layer but its statistics.
    single = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and batch == 1
    ]
    for module in single:
        module.eval()
    try:
        while True:
            watch.clear()
            optimiser.zero_grad(set_to_none=True)
            clock.settle()
            begin = clock.mark()
            with torch.autocast(device.type, dtype=half, enabled=half is not None):
                loss = nn.functional.cross_entropy(model(images), labels)
            forward = clock.mark()
            loss.backward()
            backward = clock.mark()
            optimiser.step()
            end = clock.mark()
            clock.settle()
            whole = [
                clock.between(a, b)
                for a, b in ((begin, forward), (forward, backward), (backward, end), (begin, end))
            ]
            yield _Step(
                {
                    name: clock.between(seen.begin, seen.end)
                    for name, seen in watch.seen.items()
                    if seen.end is not None
                },
                _backward(watch, backward),
                (whole[0], whole[1], whole[2], whole[3]),
            )
    finally:
        for module in single:
            module.train()


def _backward(watch: Watch, end: Any) -> dict[str, float]:
    """Seconds per layer: from its mark to the next layer's, in the order the marks came."""
    marked = [(n, s.backward) for n, s in watch.seen.items() if s.backward is not None]
    clock = watch.clock
    if not marked:
        return {}
    first = marked[0][1]
    marked.sort(key=lambda item: clock.between(first, item[1]))
    ends = [mark for _, mark in marked[1:]] + [end]
    return {
        name: clock.between(mark, after) for (name, mark), after in zip(marked, ends, strict=True)
    }


def _layer(name: str, seen: _Seen, gathered: dict[int, list[_Step]], statistic: Statistic) -> Layer:
    numel = 1
    for length in seen.output[1:]:
        numel *= length
    return Layer(
        name=name,
        kind=type(seen.module).__name__,
        parameters=sum(p.numel() for p in seen.module.parameters() if p.requires_grad),
        flops=flops_of(seen.module, seen.output),
        activation_bytes=4.0 * numel,
        forward_s={
            batch: statistic(step.forward.get(name, 0.0) for step in steps)
            for batch, steps in gathered.items()
        },
        backward_s={
            batch: statistic(step.backward.get(name, 0.0) for step in steps)
            for batch, steps in gathered.items()
        },
    )


def _batch_times(batch: int, steps: list[_Step], statistic: Statistic) -> BatchTimes:
    wholes = [step.whole[3] for step in steps]
    low, middle, high = quantiles(wholes, n=4)
    parts = [statistic(step.whole[index] for step in steps) for index in range(4)]
    spread = (high - low) / 1.35 / middle
    return BatchTimes(batch, parts[0], parts[1], parts[2], parts[3], spread)
