"""Time whole training steps that are captured in a CUDA graph, as `train` runs them on one GPU."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from thresher.distributed.group import Group, Placement
from thresher.models.kernel_use import in_captured_steps
from thresher.scaling.layers import Statistic, frozen_norms, repeated, spread_of
from thresher.scaling.profile import BatchTimes, Layer
from thresher.scaling.synthetic import SyntheticBatch
from thresher.training.config import TrainConfig
from thresher.training.execution import autocast, torch_settings
from thresher.training.graph import WARM_UP, why_not
from thresher.training.optimizers import make_optimizer, set_rate

logger = logging.getLogger(__name__)


def is_captured(precision: str, workers: int, device: torch.device) -> bool:
    """Return whether `train` would capture its steps."""
    return why_not(_config(precision), Group(Placement(world=workers), device)) is None


def time_captured(
    model: nn.Module, batch: SyntheticBatch, sizes: Sequence[int], precision: str, seconds: float
) -> dict[int, list[float]]:
    """Return the seconds of repeated captured steps by batch size; none if one is not captured.

    The model is on a GPU, and its weights change. Each size is repeated for `seconds`.
    """
    times = {}
    group = Group(Placement(), next(model.parameters()).device)
    try:
        for size in sizes:
            shaped = replace(batch, batch_size=size)
            settings = torch_settings(_config(precision), group)
            with frozen_norms(model, size), settings, in_captured_steps():
                times[size] = list(repeated(_timed(_capture(model, shaped, precision)), seconds))
    except RuntimeError as error:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        logger.warning("timing ordinary steps, because steps cannot be captured: %s", reason[0])
        return {}
    return times


def with_captured(
    layers: Sequence[Layer],
    batches: Sequence[BatchTimes],
    captured: dict[int, list[float]],
    statistic: Statistic,
) -> tuple[tuple[Layer, ...], tuple[BatchTimes, ...]]:
    """Scale the times of ordinary steps, part by part, to those of the captured ones."""
    factor, scaled = {}, []
    for times in batches:
        step = statistic(captured[times.batch])
        share = factor[times.batch] = step / times.step_s
        parts = (times.forward_s * share, times.backward_s * share, times.optimizer_s * share)
        scaled.append(BatchTimes(times.batch, *parts, step, spread_of(captured[times.batch])))
    return tuple(
        replace(
            layer,
            forward_s={n: value * factor[n] for n, value in layer.forward_s.items()},
            backward_s={n: value * factor[n] for n, value in layer.backward_s.items()},
        )
        for layer in layers
    ), tuple(scaled)


def _config(precision: str) -> TrainConfig:
    return TrainConfig.from_dict({"data": "-", "out": "-", "precision": precision})


def _capture(model: nn.Module, batch: SyntheticBatch, precision: str) -> Callable[[], None]:
    """Return a function that replays a captured step."""
    device = next(model.parameters()).device
    images, labels = batch.tensors(device)
    config = _config(precision)
    optimizer = make_optimizer(model, config, 1e-6)
    rate = torch.tensor(1e-6, device=device)

    def step() -> None:
        set_rate(optimizer, rate)
        optimizer.zero_grad(set_to_none=True)
        with autocast(config, device):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream(device).wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, step: Callable[[], None]) -> None:
    """Replay `graph`; `step` holds the images and momenta, whose memory the graph uses."""
    graph.replay()


def _timed(replay: Callable[[], None]) -> Iterator[float]:
    """Yield the seconds of each replay."""
    while True:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        torch.cuda.synchronize()
        yield begin.elapsed_time(end) / 1e3
