"""Claims S1–S3 (Cunha et al. 2018): on small data, strong scaling reaches a given loss soonest.

Real processes, real all-reduces: k workers train the autoencoder of `volumes` under four rules,
until the validation loss falls to a target that one worker is known to reach.

- strong: the global batch and the rate stay as for one worker; each takes 1/k of the batch;
- weak: each worker takes a whole batch, the rate stays;
- weak + linear: the rate grows k-fold as well;
- weak + linear + warm-up: and is reached over the first epochs.
"""

import math
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.order import epoch_order, part
from thresher.errors import ThresherError
from thresher.paths import read_json, write_json
from thresher.progress import track
from thresher.recipes.base import Recipe, RecipeResult, row
from thresher.study.statistics import paired

RULES = ("strong", "weak", "weak+linear", "weak+linear+warm-up")


@dataclass(frozen=True)
class Task:
    """One size of the experiment."""

    workers: tuple[int, ...]
    seeds: int
    samples: int
    side: int
    width: int
    batch: int
    rate: float
    target: float
    """Validation MSLE at which a run ends."""
    most_epochs: int
    warmup_epochs: int = 5
    threads: int = 1
    backend: str = "gloo"


SMOKE = Task(
    workers=(1, 2),
    seeds=3,
    samples=256,
    side=12,
    width=4,
    batch=16,
    rate=3e-3,
    target=4.5e-3,
    most_epochs=60,
)
GPU = replace(SMOKE, workers=(1, 2, 4), seeds=5, samples=1024, side=16, width=8)
PAPER = replace(
    GPU, workers=(1, 2, 4, 8, 16, 32), samples=4096, side=32, batch=64, width=16, backend="nccl"
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_workers(task: Task, workers: int, out: Path) -> list[dict[str, Any]]:
    """All rules and seeds on `workers` processes; finished ones are read back from `out`."""
    import torch.multiprocessing as mp

    if workers > task.batch:
        raise ThresherError(
            f"{workers} workers cannot share a batch of {task.batch}: strong scaling ends at one "
            "sample a worker",
            "use fewer workers",
        )
    file = out / f"workers-{workers}.json"
    if file.exists():
        stored = read_json(file)
        if stored["task"] == _comparable(task):
            return list(stored["runs"])
    mp.spawn(_worker, (workers, task, _free_port(), file), nprocs=workers)
    return list(read_json(file)["runs"])


def _comparable(task: Task) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(task).items()}


def _worker(rank: int, world: int, task: Task, port: int, file: Path) -> None:
    import torch
    import torch.distributed as dist

    from thresher.recipes.volumes import volumes

    torch.set_num_threads(task.threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group(task.backend, rank=rank, world_size=world)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
    train = torch.from_numpy(volumes(task.samples, task.side, seed=1)).to(device)
    held = torch.from_numpy(volumes(task.samples // 4, task.side, seed=2)).to(device)
    jobs = [
        (rule, seed)
        for rule in RULES
        if world > 1 or rule == RULES[0]
        for seed in range(task.seeds)
    ]
    shown = track(jobs, f"{world} workers") if rank == 0 else jobs
    runs = [train_to_target(task, rule, seed, rank, world, train, held) for rule, seed in shown]
    if rank == 0:
        write_json(file, {"task": _comparable(task), "runs": runs})
    dist.destroy_process_group()


def train_to_target(
    task: Task, rule: str, seed: int, rank: int, world: int, train: Any, held: Any
) -> dict[str, Any]:
    """One run: seconds, steps and samples until the held-out loss is at the target."""
    import torch
    import torch.distributed as dist

    from thresher.recipes.volumes import autoencoder, msle

    batch = task.batch * (1 if rule == "strong" else world)
    peak = task.rate * (world if "linear" in rule else 1)
    model = autoencoder(task.side, task.width, seed).to(train.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=peak)
    steps_per_epoch = math.ceil(len(train) / batch)
    warm = task.warmup_epochs * steps_per_epoch if rule.endswith("warm-up") else 0
    seconds, steps, samples, loss = 0.0, 0, 0, math.inf
    for epoch in range(task.most_epochs):
        dist.barrier()
        begun = time.perf_counter()
        order = epoch_order(len(train), seed, epoch)
        for first in range(0, len(order), batch):
            whole = order[first : first + batch]
            mine = torch.from_numpy(part(whole, rank, world)).to(train.device)
            if warm:
                grown = task.rate + (peak - task.rate) * min(1.0, (steps + 1) / warm)
                optimizer.param_groups[0]["lr"] = grown
            optimizer.zero_grad(set_to_none=False)
            (msle(model(train[mine]), train[mine]) / len(whole)).backward()
            flat = torch.cat([p.grad.reshape(-1) for p in parameters])  # type: ignore[union-attr]
            dist.all_reduce(flat)
            for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad = g.view_as(p)
            optimizer.step()
            steps += 1
            samples += len(whole)
        if train.device.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - begun
        # The test of the loss is the same for every rule, so its time is left out.
        with torch.no_grad():
            loss = float(msle(model(held), held)) / len(held)
        if not math.isfinite(loss) or loss <= task.target:
            break
    weights = torch.cat([p.detach().reshape(-1) for p in parameters])
    return {
        "workers": world,
        "rule": rule,
        "seed": seed,
        "reached": bool(math.isfinite(loss) and loss <= task.target),
        "seconds": seconds,
        "steps": steps,
        "samples": samples,
        "images_per_s": samples / seconds,
        "loss": loss if math.isfinite(loss) else None,
        "norm": float(weights.double().norm()) if math.isfinite(loss) else None,
    }


def reproduce(task: Task, out: Path) -> RecipeResult:
    """Every worker count in turn, then the table."""
    out.mkdir(parents=True, exist_ok=True)
    runs = [run for k in task.workers for run in run_workers(task, k, out)]
    rows = [*_sooner(runs, task), _same_path(runs, task), _yardstick(runs, task)]
    return RecipeResult(rows, {"task": _comparable(task), "runs": runs})


def _of(runs: list[dict[str, Any]], workers: int, rule: str) -> list[dict[str, Any]]:
    return [run for run in runs if run["workers"] == workers and run["rule"] == rule]


def _sooner(runs: list[dict[str, Any]], task: Task) -> list[dict[str, Any]]:
    """S1: strong scaling against each weak rule, paired by seed, on the logarithm of the time."""
    lines = []
    for k in task.workers:
        for rule in RULES[1:] if k > 1 else ():
            strong, weak = _of(runs, k, RULES[0]), _of(runs, k, rule)
            missed = [run["seed"] for run in weak if not run["reached"]]
            both = [
                (s, w) for s, w in zip(strong, weak, strict=True) if s["reached"] and w["reached"]
            ]
            if not both:
                holds = "yes" if all(run["reached"] for run in strong) else "not enough runs"
                measured, interval = f"{rule} never reached the loss", ""
            else:
                logs = [np.log([pair[side]["seconds"] for pair in both]) for side in (0, 1)]
                found = paired(logs[0], logs[1], margin=0.05, higher_is_better=False)
                low, high = (math.exp(-x) for x in reversed(found.interval))
                measured = f"strong {math.exp(-found.mean):.2f}× as fast as {rule}"
                interval = f"{low:.2f} … {high:.2f}" if len(both) > 1 else ""
                holds = "yes" if low > 1 else "no" if high < 1 else "not enough runs"
            note = f"{len(missed)} of {len(weak)} {rule} runs missed the loss" if missed else ""
            lines.append(
                row(
                    "S1",
                    f"{k} workers: strong reaches the loss first",
                    measured,
                    holds,
                    interval,
                    note,
                )
            )
    return lines


def _same_path(runs: list[dict[str, Any]], task: Task) -> dict[str, Any]:
    """S2: after as many steps, the weights of k workers are those of one, to rounding."""
    apart = 0.0
    alone = {run["seed"]: run for run in _of(runs, 1, RULES[0])}
    for run in runs:
        if run["rule"] == RULES[0] and run["workers"] > 1 and alone[run["seed"]]["norm"]:
            one = alone[run["seed"]]
            same = run["steps"] == one["steps"] and run["norm"]
            apart = max(apart, abs(run["norm"] / one["norm"] - 1) if same else math.inf)
    measured = f"weights differ by {apart:.1e}" if math.isfinite(apart) else "steps differ"
    return row(
        "S2",
        f"the same path as one worker; never more workers than the batch ({task.batch})",
        measured,
        "yes" if apart < 1e-3 else "no",
        note="relative difference of the weights' norm at the target, float32",
    )


def _yardstick(runs: list[dict[str, Any]], task: Task) -> dict[str, Any]:
    """S3: the rule with the highest throughput need not be the one that is done first."""
    k = max(task.workers)
    speed = {r: np.mean([run["images_per_s"] for run in _of(runs, k, r)]) for r in RULES}
    times = {
        r: np.mean([run["seconds"] if run["reached"] else math.inf for run in _of(runs, k, r)])
        for r in RULES
    }
    fastest, soonest = max(speed, key=lambda r: speed[r]), min(times, key=lambda r: times[r])
    return row(
        "S3",
        "time to a loss, not throughput, is the yardstick",
        f"{k} workers: most images/s {fastest}, first at the loss {soonest}",
        "yes" if fastest != soonest else "no",
    )


RECIPE = Recipe(
    "cunha-strong",
    "S1–S3",
    "strong scaling reaches a given loss sooner than weak, on small 3-D data",
    {
        "smoke": lambda out: reproduce(SMOKE, out),
        "gpu": lambda out: reproduce(GPU, out),
        "paper": lambda out: reproduce(PAPER, out),
    },
)
