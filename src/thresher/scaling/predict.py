"""Step time on any number of workers of a cluster: computation, exposed communication, input."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from thresher.errors import ThresherError
from thresher.scaling import compute, pipeline
from thresher.scaling.cluster import Cluster
from thresher.scaling.costs import ALGORITHMS, Fabric, compression
from thresher.scaling.pipeline import MEGA
from thresher.scaling.profile import Profile

Scaling = Literal["strong", "weak"]
LINK_DOUBT = (1.6, 1.0, 0.8)
"""Transfers on a shared network take longer than its data sheet far more often than less."""
STRAGGLER_CAP = 0.10
PAYS = 0.5
"""More workers pay while they bring at least half of the images per second they should."""


@dataclass(frozen=True)
class Setting:
    """How a run communicates and computes."""

    scaling: Scaling = "weak"
    batch_size: int = 0
    """Global batch on one worker; strong scaling splits it. 0: the profile's."""
    precision: str = "fp32"
    allreduce: str = "best"
    compress: str = "none"
    engine: Literal["ddp", "horovod"] = "ddp"
    bucket_mb: float = 25.0
    horovod: pipeline.Horovod = field(default_factory=pipeline.Horovod)


@dataclass(frozen=True)
class Row:
    """One number of workers. Seconds are per step; `low` and `high` bound `step_s`."""

    workers: int
    batch_size: int
    per_worker_batch: float
    compute_s: float
    communication_s: float
    exposed_s: float
    input_s: float
    step_s: float
    step_low_s: float
    step_high_s: float
    images_per_s: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    allreduce: str
    limit: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Step:
    """The parts of one predicted step, before they become a row."""

    compute_s: float
    communication_s: float
    exposed_s: float
    latency_s: float
    """What would still be exposed on links of infinite bandwidth."""
    straggler_s: float
    input_s: float
    step_s: float
    timeline: pipeline.Timeline


def predict(
    profile: Profile, cluster: Cluster, workers: Sequence[int], setting: Setting
) -> list[Row]:
    """A row per number of workers; efficiency is against one worker of the same cluster."""
    check_workers(workers, cluster)
    base = [step(profile, cluster, 1, setting, level) for level in range(3)]
    batch_one = setting.batch_size or profile.batch_size
    rows = []
    for count in workers:
        levels = [step(profile, cluster, count, setting, level) for level in range(3)]
        batch = batch_one if setting.scaling == "strong" else batch_one * count
        speeds = [batch / s.step_s for s in levels]
        ideal = [count * batch_one / s.step_s for s in base]
        shares = sorted(s / i for s, i in zip(speeds, ideal, strict=True))
        middle = levels[1]
        fabric = Fabric.of(cluster)
        used = setting.allreduce
        if used == "best":
            used = fabric.cheapest(profile.gradient_bytes, count) if count > 1 else "none"
        rows.append(
            Row(
                workers=count,
                batch_size=batch,
                per_worker_batch=batch / count,
                compute_s=middle.compute_s,
                communication_s=middle.communication_s,
                exposed_s=middle.exposed_s,
                input_s=middle.input_s,
                step_s=middle.step_s,
                step_low_s=min(s.step_s for s in levels),
                step_high_s=max(s.step_s for s in levels),
                images_per_s=speeds[1],
                efficiency=speeds[1] / ideal[1],
                efficiency_low=shares[0],
                efficiency_high=shares[-1],
                allreduce=used,
                limit=limit_of(middle, base[1], batch_one, count, setting.scaling),
            )
        )
    return rows


def step(
    profile: Profile, cluster: Cluster, workers: int, setting: Setting, level: int = 1
) -> Step:
    """One step on `workers`; `level` 0, 1, 2 is the pessimistic, likely, optimistic estimate."""
    batch = setting.batch_size or profile.batch_size
    # A worker cannot hold less than one sample (claim K3); those beyond the batch stand idle.
    per_worker = max(1.0, batch / workers) if setting.scaling == "strong" else float(batch)
    if compute.measured_here(profile, cluster, setting.precision):
        work = compute.from_profile(profile, per_worker)
        spread = (1 + 2 * _spread(profile), 1.0, 1.0 - _spread(profile))[level]
        work = work.slower(spread)
    else:
        work = compute.from_roofline(profile, cluster, per_worker, setting.precision, level)
    if cluster.shared_cores:
        threads = int(profile.device.get("threads", 1))
        on_node = min(workers, cluster.devices_per_node)
        work = work.slower(max(1.0, on_node * threads / cluster.shared_cores))
    fabric = Fabric.of(cluster, LINK_DOUBT[level])
    line = communicate(work, fabric, cluster, workers, setting)
    bare = communicate(work, _latency_only(fabric), cluster, workers, setting)
    straggler = work.seconds * _spread(profile) * math.sqrt(2 * math.log(workers))
    input_s = input_seconds(profile, cluster, per_worker, workers)
    exposed = line.exposed_s + straggler
    return Step(
        compute_s=work.seconds,
        communication_s=line.communication_s,
        exposed_s=exposed,
        latency_s=bare.exposed_s,
        straggler_s=straggler,
        input_s=input_s,
        # The next batch is read while this one is computed: the slower of the two sets the pace.
        step_s=max(work.seconds + exposed, input_s),
        timeline=line,
    )


def communicate(
    work: compute.StepCompute, fabric: Fabric, cluster: Cluster, workers: int, setting: Setting
) -> pipeline.Timeline:
    """Lay the gradients' messages beside the backward pass."""
    packed = compression(setting.compress)
    memory = cluster.device.memory_gbs * 1e9

    def cost(size: float) -> float:
        return packed.seconds(fabric, setting.allreduce, size, workers, memory)

    if workers <= 1:
        return pipeline.Timeline(work.backward_s)
    if setting.engine == "horovod":
        outer = workers > cluster.devices_per_node
        latency = (fabric.outer if outer else fabric.inner).latency_s
        return pipeline.horovod(
            work.gradients, work.backward_s, cost, workers, latency, setting.horovod
        )
    return pipeline.ddp(work.gradients, work.backward_s, cost, setting.bucket_mb * MEGA)


def _latency_only(fabric: Fabric) -> Fabric:
    return replace(
        fabric,
        inner=replace(fabric.inner, seconds_per_byte=0.0),
        outer=replace(fabric.outer, seconds_per_byte=0.0),
    )


def _spread(profile: Profile) -> float:
    """σ of a step, relative: every worker waits for the slowest of p, σ√(2 ln p) late."""
    values = sorted(b.spread for b in profile.batches)
    return min(STRAGGLER_CAP, values[len(values) // 2])


def input_seconds(profile: Profile, cluster: Cluster, per_worker: float, workers: int) -> float:
    """Reading one batch: the file system's share, or the loader's own speed if that is less."""
    on_node = min(workers, cluster.devices_per_node)
    nodes = math.ceil(workers / cluster.devices_per_node)
    bytes_s = min(cluster.storage_node_bytes_s, cluster.storage_bytes_s / nodes) / on_node
    seconds = per_worker * profile.sample_bytes / bytes_s
    if profile.input and profile.input.get("images_per_s"):
        return max(seconds, per_worker / float(profile.input["images_per_s"]))
    return seconds


def limit_of(now: Step, base: Step, batch: int, workers: int, scaling: Scaling) -> str:
    """What costs most against perfect scaling, in a word or two."""
    if scaling == "strong" and workers > batch:
        return "batch"
    if now.input_s > now.compute_s + now.exposed_s:
        return "input"
    perfect = base.compute_s / workers if scaling == "strong" else base.compute_s
    losses = {
        "small batches": now.compute_s - perfect,
        "latency": now.latency_s,
        "bandwidth": now.exposed_s - now.straggler_s - now.latency_s,
        "stragglers": now.straggler_s,
    }
    name, worst = max(losses.items(), key=lambda item: item[1])
    return name if worst > 0.02 * now.step_s else "compute"


def stops_paying(rows: Sequence[Row]) -> Row | None:
    """The first row whose workers bring less than half of what they should have; None: none."""
    for before, after in itertools.pairwise(rows):
        more = after.images_per_s / before.images_per_s - 1
        due = after.workers / before.workers - 1
        if due > 0 and more < PAYS * due:
            return after
    return None


def alternatives(
    profile: Profile, cluster: Cluster, workers: Sequence[int], setting: Setting
) -> list[dict[str, Any]]:
    """The same run with each all-reduce, precision, compression and engine: efficiency at the
    largest number of workers, and where each stops paying."""
    found = []
    trials = [("ddp", a, p, "none") for p in cluster.device.peak_tflops for a in ALGORITHMS]
    trials += [
        ("ddp", "best", setting.precision, c) for c in ("fp16", "int8", "topk:0.01", "powersgd:4")
    ]
    trials.append(("horovod", "best", setting.precision, "none"))
    for engine, algorithm, precision, compress in trials:
        changed = replace(
            setting,
            engine=engine,  # type: ignore[arg-type]
            allreduce=algorithm,
            precision=precision,
            compress=compress,
        )
        rows = predict(profile, cluster, workers, changed)
        stop = stops_paying(rows)
        found.append(
            {
                "engine": engine,
                "allreduce": algorithm,
                "precision": precision,
                "compress": compress,
                "images_per_s": rows[-1].images_per_s,
                "efficiency": rows[-1].efficiency,
                "stops_paying_at": stop.workers if stop else None,
                "limit": stop.limit if stop else rows[-1].limit,
            }
        )
    return found


def check_workers(workers: Sequence[int], cluster: Cluster) -> None:
    for count in workers:
        if count < 1:
            raise ThresherError(f"there cannot be {count} workers", "give numbers from 1 up")
        if count > cluster.capacity:
            raise ThresherError(
                f"the cluster {cluster.name} has {cluster.capacity:,} devices, not {count:,}",
                "ask for fewer workers",
            )
