"""One rank of an engine comparison: time steps with and without communication."""

import os
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed import horovod
from thresher.distributed.hooks import gradient_hook
from thresher.distributed.local_group import gloo_group
from thresher.lab.engines import EngineOrder, EngineSetting, EngineTimes
from thresher.lab.timeline import horovod_spans
from thresher.models.registry import build
from thresher.options import from_mapping, to_mapping
from thresher.paths import scratch_folder
from thresher.scaling.pipeline import Span

WARMUP_STEPS = 3
"""DDP regroups its buckets after one step; Horovod's cache is full after two."""


class DDPEngine:
    """DDP with a hook that records when each bucket is full and when it is summed."""

    def __init__(self, model: nn.Module, compress: str, bucket_mb: float) -> None:
        self.module: nn.Module = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.state, hook = gradient_hook(compress, "default", model.named_parameters())
        self.record: Any = []
        """What was recorded since `begin`."""

        def timed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            entry = [time.time(), 0.0, bucket.buffer().nbytes]
            self.record.append(entry)

            def done(future: torch.futures.Future[Tensor]) -> Tensor:
                entry[1] = time.time()
                return future.value()

            return hook(state, bucket).then(done)

        self.module.register_comm_hook(self.state, timed)

    def begin(self) -> None:
        self.record = []

    def finish(self) -> None:
        """Wait for the gradients of the step: done, the backward pass waits for the buckets."""

    def last_gradient(self, record: Any) -> float:
        """Return when the last gradient of a recorded step was computed."""
        return max(full for full, _, _ in record)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.module.no_sync()  # type: ignore[operator]

    def spans(self, record: Any, begin: float) -> list[Span]:
        """Return the spans of a recorded step that began at `begin`; call `close` first."""
        return [
            Span("bucket", full - begin, summed - begin, int(size), f"bucket {i}")
            for i, (full, summed, size) in enumerate(record)
        ]

    def close(self) -> None:
        self.state.close()


class HorovodEngine:
    """Horovod's queue; its spans come from the timeline file that Horovod writes."""

    def __init__(
        self, model: nn.Module, compress: str, fusion_mb: float, cycle_ms: float, file: Path
    ) -> None:
        os.environ["HOROVOD_TIMELINE"] = str(file)
        self.module, self.file = model, file
        self.record: Any = {}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(partial(self._mark, name))
        self.reducer = horovod.HorovodReducer(
            model.named_parameters(), compress, fusion_mb, cycle_ms
        )
        self.sizes = {n: p.numel() * p.element_size() for n, p in model.named_parameters()}

    def _mark(self, name: str, parameter: Tensor) -> None:
        self.record[name] = time.time()

    def begin(self) -> None:
        self.record = {}

    def finish(self) -> None:
        self.reducer.synchronize()

    def last_gradient(self, record: Any) -> float:
        return max(record.values())

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.reducer.no_sync()

    def spans(self, record: Any, begin: float) -> list[Span]:
        return horovod_spans(self.file, record, self.sizes, begin)

    def close(self) -> None:
        """Shut Horovod down, which completes its timeline file."""
        self.reducer.close()
        horovod.leave()


def time_settings(values: Any) -> list[Any]:
    """Time each setting of an `EngineOrder`: the worker function of `compare_engines`."""
    order = from_mapping(EngineOrder, values)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with gloo_group(), scratch_folder("compare") as folder:
        return [
            to_mapping(_time_setting(order, setting, folder / f"timeline-{number}.json"))
            for number, setting in enumerate(order.settings)
        ]


def _engine(
    model: nn.Module, compress: str, setting: EngineSetting, file: Path
) -> DDPEngine | HorovodEngine:
    if setting.fusion_mb is not None and setting.cycle_ms is not None:
        return HorovodEngine(model, compress, setting.fusion_mb, setting.cycle_ms, file)
    assert setting.bucket_mb is not None
    return DDPEngine(model, compress, setting.bucket_mb)


def _time_setting(order: EngineOrder, setting: EngineSetting, file: Path) -> EngineTimes:
    torch.manual_seed(0)
    batch = order.batch
    model = build(order.model, batch.classes, batch.shape[0])
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    engine = _engine(model, order.compress, setting, file)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    images, labels = batch.tensors("cpu")

    def step(communicate: bool) -> tuple[float, list[Span]]:
        dist.barrier()
        optimizer.zero_grad()
        engine.begin()
        begin = time.time()
        loss = nn.functional.cross_entropy(engine.module(images), labels)
        forward = time.time()
        loss.backward()
        last = time.time()
        if communicate:
            last = engine.last_gradient(engine.record)
            engine.finish()
        gradients = time.time()
        optimizer.step()
        end = time.time()
        return end - begin, [
            Span("forward", 0.0, forward - begin),
            Span("backward", forward - begin, last - begin),
            Span("wait", last - begin, gradients - begin),
            Span("update", gradients - begin, end - begin),
        ]

    for _ in range(WARMUP_STEPS):
        step(True)
    with_communication, without, recorded = [], [], []
    for _ in range(order.steps):
        # Alternating, so that other load affects both alike.
        with engine.no_sync():
            without.append(step(False)[0])
        seconds, spans = step(True)
        with_communication.append(seconds)
        recorded.append((seconds, spans, engine.record))
    dist.barrier()
    engine.close()
    _, spans, record = sorted(recorded, key=lambda entry: entry[0])[len(recorded) // 2]
    if dist.get_rank() == 0:
        # Gradients are recorded by the clock; the last one ends the backward span.
        spans += engine.spans(record, engine.last_gradient(record) - spans[1].end_s)
    return EngineTimes(median(with_communication), median(without), tuple(spans))
