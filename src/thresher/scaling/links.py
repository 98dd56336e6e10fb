"""Time all-reduces, and whole data-parallel steps, on a group of processes.

`measure_group` starts N processes on this machine, lets them meet through a file, and gathers what
the first of them timed. Inside a group that is already there (torchrun, srun) all ranks call
`measure_present`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from thresher.distributed.group import end_at_once
from thresher.errors import ThresherError

SIZES = tuple(4**k for k in range(5, 13))
"""1 KiB to 16 MiB."""
LIMIT_S = 900


def time_allreduce(
    sizes: Sequence[int] = SIZES, seconds: float = 0.2, device: str = "cpu"
) -> list[tuple[float, float]]:
    """(bytes, median seconds) of `dist.all_reduce` on the present group; all ranks must call it.

    The number of repetitions is settled by the first rank and told to the others.
    """
    import torch
    import torch.distributed as dist

    points = []
    for size in sizes:
        tensor = torch.zeros(max(1, size // 4), device=device)
        once = _timed(lambda tensor=tensor: dist.all_reduce(tensor), device)  # type: ignore[misc]
        count = torch.tensor([max(3, min(100, int(seconds / max(once, 1e-6))))], device=device)
        dist.broadcast(count, 0)
        times = [
            _timed(lambda tensor=tensor: dist.all_reduce(tensor), device)  # type: ignore[misc]
            for _ in range(int(count.item()))
        ]
        points.append((float(size), median(times)))
    return points


def _timed(action: Callable[[], Any], device: str) -> float:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def time_step(
    model: Any,
    shape: tuple[int, int, int],
    classes: int,
    batch: int,
    device: str = "cpu",
    bucket_mb: float = 25,
    seconds: float = 1.5,
) -> dict[str, float]:
    """A real DDP step against the same step without communication, on the present group.

    `batch` is per worker. Gives median seconds of both (`step_s`, `compute_s`), the seconds that
    the gradients take when reduced alone bucket by bucket (`communication_s`), what of it shows
    (`exposed_s`) and the share that is hidden. Steps with and without alternate, so that a
    disturbance of the machine touches both alike.
    """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = model.to(device=device, memory_format=torch.channels_last).train()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, broadcast_buffers=False)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    images = torch.randn(batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(classes, (batch,), device=device)

    def step(together: bool) -> None:
        optimiser.zero_grad(set_to_none=False)
        if together:
            nn.functional.cross_entropy(wrapped(images), labels).backward()
        else:
            with wrapped.no_sync():
                nn.functional.cross_entropy(wrapped(images), labels).backward()
        optimiser.step()

    gradients = [p for p in model.parameters() if p.requires_grad]

    def reduce_alone() -> None:
        for flat in pieces:
            dist.all_reduce(flat)

    total = sum(p.numel() for p in gradients)
    limit = max(1, int(bucket_mb * 2**20 / 4))
    pieces = [torch.zeros(min(limit, total - at), device=device) for at in range(0, total, limit)]
    for _ in range(2):
        step(True)
    once = _timed(lambda: step(True), device)
    count = torch.tensor([max(3, min(40, int(seconds / max(3 * once, 1e-6))))], device=device)
    dist.broadcast(count, 0)
    together, alone, reduce = [], [], []
    for _ in range(int(count.item())):
        dist.barrier()
        together.append(_timed(lambda: step(True), device))
        dist.barrier()
        alone.append(_timed(lambda: step(False), device))
        dist.barrier()
        reduce.append(_timed(reduce_alone, device))
    step_s, compute_s, communication_s = median(together), median(alone), median(reduce)
    exposed = max(0.0, step_s - compute_s)
    return {
        "batch_size": batch * dist.get_world_size(),
        "step_s": step_s,
        "compute_s": compute_s,
        "communication_s": communication_s,
        "exposed_s": exposed,
        "hidden": max(0.0, 1 - exposed / communication_s) if communication_s > 0 else 1.0,
    }


def measure_group(workers: int, task: dict[str, Any] | None = None) -> dict[str, Any]:
    """Start `workers` processes here and time the all-reduce (and a step of `task`'s model).

    `task` names model, classes, shape and batch (per worker); None times the links alone. Takes
    about ten seconds.
    """
    if workers < 2:
        raise ThresherError("communication needs two workers at least", "--workers 2")
    threads = max(1, (os.cpu_count() or 1) // workers)
    with tempfile.TemporaryDirectory(prefix="thresher-links-") as name:
        folder = Path(name)
        arguments = json.dumps({"folder": name, "workers": workers, "task": task})
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        processes = []
        for rank in range(workers):
            with open(folder / f"{rank}.log", "w") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "thresher.scaling.links", str(rank), arguments],
                        env=environment,
                        stdout=log,
                        stderr=log,
                    )
                )
        try:
            _await(processes, folder)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        found: dict[str, Any] = json.loads((folder / "found.json").read_text())
        return found


def measure_present(task: dict[str, Any] | None, device: str) -> dict[str, Any]:
    """The same on the group that this process belongs to; every rank must call it."""
    import torch
    import torch.distributed as dist

    found: dict[str, Any] = {
        "backend": "nccl" if device.startswith("cuda") else "gloo",
        "workers": dist.get_world_size(),
        "device": device,
        "points": time_allreduce(device=device),
    }
    if task is not None:
        from thresher.models.registry import build

        torch.manual_seed(0)
        shape, classes = tuple(task["shape"]), task["classes"]
        model = build(task["model"], classes, shape[0])
        step = time_step(model, shape, classes, task["batch"], device)
        found["overlap"] = {"workers": found["workers"], **step}
    return found


def _await(processes: list["subprocess.Popen[bytes]"], folder: Path) -> None:
    """Until all have ended well; the first that fails is named, since the others then hang."""
    end = time.monotonic() + LIMIT_S
    while True:
        states = [process.poll() for process in processes]
        for rank, state in enumerate(states):
            if state:
                text = (folder / f"{rank}.log").read_text().strip()
                last = (text.splitlines() or ["it said nothing"])[-1]
                raise ThresherError(f"worker {rank} of {len(processes)} failed: {last}")
        if all(state == 0 for state in states):
            return
        if time.monotonic() > end:
            raise ThresherError(f"the workers did not finish within {LIMIT_S} seconds")
        time.sleep(0.05)


def _worker(rank: int, arguments: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    folder, workers, task = Path(arguments["folder"]), arguments["workers"], arguments["task"]
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= workers
    device = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meet", rank=rank, world_size=workers
    )
    found = measure_present(task, device)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _worker(int(sys.argv[1]), json.loads(sys.argv[2]))
    end_at_once(0)
