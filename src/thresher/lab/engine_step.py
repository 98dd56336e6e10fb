"""One rank of an engine comparison: `python -m thresher.lab.engine_step TASK`, started by
`compare`. Times steps with and without communication and records one step's timeline."""

import json
import os
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from thresher.distributed.group import end_at_once
from thresher.scaling.timeline import Span, horovod_spans, span

WARM = 3
"""Steps before the clock: DDP regroups its buckets after one, Horovod's cache fills in two."""


class DDPEngine:
    """DDP with a hook that notes when each bucket was full and when it was summed."""

    def __init__(self, model: nn.Module, compress: str, bucket_mb: float) -> None:
        from thresher.distributed.hooks import gradient_hook

        self.module = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.state, hook = gradient_hook(compress, "default", model.named_parameters())
        self.noted: list[list[float]] = []

        def timed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            noted = [time.time(), 0.0, bucket.buffer().nbytes]
            self.noted.append(noted)

            def done(future: torch.futures.Future[Tensor]) -> Tensor:
                noted[1] = time.time()
                return future.value()

            return hook(state, bucket).then(done)

        self.module.register_comm_hook(self.state, timed)

    def begin(self) -> None:
        self.noted = []

    def finish(self) -> float:
        """After the backward pass: when the last gradient was made."""
        return self.last(self.noted)

    def last(self, noted: list[list[float]]) -> float:
        return max(full for full, _, _ in noted)

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.module.no_sync()

    def spans(self, noted: list[list[float]], begin: float) -> list[Span]:
        return [
            span("bucket", full - begin, summed - begin, int(size), f"bucket {i}")
            for i, (full, summed, size) in enumerate(noted)
        ]

    def close(self) -> None:
        self.state.close()


class HorovodEngine:
    """Horovod's queue; `spans` reads its timeline, so it comes after `close`."""

    def __init__(
        self, model: nn.Module, compress: str, fusion_mb: float, cycle_ms: float, file: Path
    ) -> None:
        from thresher.distributed.horovod import HorovodReducer

        os.environ["HOROVOD_TIMELINE"] = str(file)
        self.module, self.file = model, file
        self.noted: dict[str, float] = {}
        for name, parameter in model.named_parameters():
            parameter.register_post_accumulate_grad_hook(self._note(name))
        self.reducer = HorovodReducer(model.named_parameters(), compress, fusion_mb, cycle_ms)
        self.sizes = {n: p.numel() * p.element_size() for n, p in model.named_parameters()}

    def _note(self, name: str) -> Any:
        def note(parameter: nn.Parameter) -> None:
            self.noted[name] = time.time()

        return note

    def begin(self) -> None:
        self.noted = {}

    def finish(self) -> float:
        last = self.last(self.noted)
        self.reducer.synchronize()
        return last

    def last(self, noted: dict[str, float]) -> float:
        return max(noted.values())

    def no_sync(self) -> AbstractContextManager[Any]:
        return self.reducer.no_sync()

    def spans(self, noted: dict[str, float], begin: float) -> list[Span]:
        return horovod_spans(self.file, noted, self.sizes, begin)

    def close(self) -> None:
        """Leave Horovod, so that its timeline is whole."""
        from thresher.distributed import horovod

        self.reducer.close()
        horovod.leave()


def run(task: dict[str, Any], setting: dict[str, Any], file: Path) -> dict[str, Any]:
    """What rank 0 saw of `setting`: median seconds of a step, of its computation, and the spans."""
    from thresher.models.registry import build

    torch.manual_seed(0)
    shape, classes = tuple(task["shape"]), task["classes"]
    model = build(task["model"], classes, shape[0])
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if setting["engine"] == "horovod":
        knobs = (setting["fusion_mb"], setting["cycle_ms"])
        engine: Any = HorovodEngine(model, task["compress"], *knobs, file)
    else:
        engine = DDPEngine(model, task["compress"], setting["bucket_mb"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    images = torch.randn(task["batch"], *shape).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (task["batch"],))

    def step(together: bool) -> tuple[float, list[Span]]:
        dist.barrier()
        optimizer.zero_grad()
        engine.begin()
        begin = time.time()
        loss = nn.functional.cross_entropy(engine.module(images), labels)
        forward = time.time()
        loss.backward()
        made = engine.finish() if together else time.time()
        gradients = time.time()
        optimizer.step()
        end = time.time()
        return end - begin, [
            span("forward", 0.0, forward - begin),
            span("backward", forward - begin, made - begin),
            span("wait", made - begin, gradients - begin),
            span("update", gradients - begin, end - begin),
        ]

    for _ in range(WARM):
        step(True)
    together, alone, lines = [], [], []
    for _ in range(task["steps"]):
        # Alternating, so that a disturbance of the machine touches both alike.
        with engine.no_sync():
            alone.append(step(False)[0])
        seconds, spans = step(True)
        together.append(seconds)
        lines.append((seconds, spans, engine.noted))
    dist.barrier()
    engine.close()
    _, spans, noted = sorted(lines, key=lambda line: line[0])[len(lines) // 2]
    # Gradients are noted by the clock; the last was made where the backward span ends.
    last = engine.last(noted)
    spans += engine.spans(noted, last - spans[1]["end_s"]) if dist.get_rank() == 0 else []
    return {"step_s": median(together), "compute_s": median(alone), "spans": spans}


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    found = []
    for number, setting in enumerate(task["settings"]):
        found.append(run(task, setting, Path(task["folder"]) / f"timeline-{number}.json"))
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_at_once(0)
