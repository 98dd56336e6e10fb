"""Predict one step on a number of workers: computation, exposed communication, input."""

import math
from dataclasses import dataclass, replace
from statistics import median_high
from typing import ClassVar, Literal

from thresher.options import option
from thresher.scaling import compute, pipeline
from thresher.scaling.cluster import Cluster, DevicePrecision
from thresher.scaling.costs import Fabric, compression
from thresher.scaling.pipeline import MEGA
from thresher.scaling.profile import Profile

Scaling = Literal["strong", "weak"]
LINK_UNCERTAINTY = (1.6, 1.0, 0.8)
"""Factor on transfer times for the low, likely and high estimate: transfers on a shared network
are slower than its data sheet far more often than faster."""
STRAGGLER_CAP = 0.10


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """How a run computes and communicates."""

    first_bucket_mb: ClassVar[float | None] = None
    """Size of DDP's first bucket in MiB; None: that of the others, as in `thresher train`."""
    scaling: Scaling = "weak"
    """strong: the global batch is split over the workers; weak: every worker has the batch."""
    batch_size: int | None = option(None, ge=1)
    """The batch on one worker (default: the profile's)."""
    precision: DevicePrecision = "fp32"
    """Precision of the layers."""
    allreduce: Literal["best", "ring", "tree", "hierarchical", "torus"] = "best"
    """All-reduce algorithm; best takes the cheapest for each message."""
    compress: str = "none"
    """none, fp16, bf16, int8, topk:SHARE or powersgd:RANK."""
    engine: Literal["ddp", "horovod"] = "ddp"
    """DDP's static buckets, or Horovod's dynamic queue."""
    bucket_mb: float = option(25.0, gt=0)
    """DDP's bucket size in MiB."""
    fusion_mb: float = option(128.0, gt=0)
    """Horovod's fusion buffer in MiB."""
    cycle_ms: float = option(1.0, gt=0)
    """Horovod's cycle time in milliseconds."""
    per_rank_us: float = option(2.0, ge=0)
    """Microseconds that Horovod's coordinator spends on each rank in a negotiation; 2 is assumed,
    not measured."""


class TorchStepConfig(StepConfig):
    """A run of others with torch's own sizes: the first bucket is small, to begin early."""

    first_bucket_mb = 1.0


@dataclass(frozen=True)
class PredictedStep:
    """The parts of one predicted step."""

    compute_s: float
    communication_s: float
    exposed_s: float
    """Communication and waiting for stragglers that the backward pass does not hide."""
    latency_s: float
    """Communication that would still be exposed on links of infinite bandwidth."""
    straggler_s: float
    input_s: float
    step_s: float
    timeline: pipeline.Timeline


def predict_step(
    profile: Profile, cluster: Cluster, workers: int, config: StepConfig, level: int = 1
) -> PredictedStep:
    """Predict one step; `level` 0, 1 or 2 is the pessimistic, likely or optimistic estimate."""
    batch = config.batch_size or profile.batch_size
    # Each worker computes at least one sample; workers beyond the batch are idle.
    per_worker = max(1.0, batch / workers) if config.scaling == "strong" else float(batch)
    spread = min(STRAGGLER_CAP, median_high(b.spread for b in profile.batches))
    if compute.measured_here(profile, cluster, config.precision):
        factor = (1 + 2 * spread, 1.0, 1.0 - spread)[level]
        work = compute.from_profile(profile, per_worker).slower(factor)
    else:
        work = compute.from_roofline(profile, cluster, per_worker, config.precision, level)
    if cluster.shared_cores:
        on_node = min(workers, cluster.devices_per_node)
        load = on_node * profile.device.threads / cluster.shared_cores
        work = work.slower(max(1.0, load))
    fabric = Fabric.of(cluster, LINK_UNCERTAINTY[level])
    line = _communicate(work, fabric, cluster, workers, config)
    inner, outer = (replace(link, seconds_per_byte=0.0) for link in (fabric.inner, fabric.outer))
    instant = replace(fabric, inner=inner, outer=outer)
    bare = _communicate(work, instant, cluster, workers, config)
    # Every worker waits for the slowest of p, which is about σ√(2 ln p) late.
    straggler = work.seconds * spread * math.sqrt(2 * math.log(workers))
    input_s = _input_seconds(profile, cluster, per_worker, workers)
    exposed = line.exposed_s + straggler
    return PredictedStep(
        compute_s=work.seconds,
        communication_s=line.communication_s,
        exposed_s=exposed,
        latency_s=bare.exposed_s,
        straggler_s=straggler,
        input_s=input_s,
        # The next batch is read while this one is computed, so the slower of the two counts.
        step_s=max(work.seconds + exposed, input_s),
        timeline=line,
    )


def _communicate(
    work: compute.ComputeTimes, fabric: Fabric, cluster: Cluster, workers: int, config: StepConfig
) -> pipeline.Timeline:
    compressed = compression(config.compress)
    memory = cluster.device.memory_gbs * 1e9

    def cost(size: float) -> float:
        return compressed.seconds(fabric, config.allreduce, size, workers, memory)

    if workers <= 1:
        return pipeline.Timeline(work.backward_s)
    if config.engine == "horovod":
        link = fabric.outer if workers > cluster.devices_per_node else fabric.inner
        queue = pipeline.HorovodQueue(
            config.cycle_ms * 1e-3, config.fusion_mb * MEGA, config.per_rank_us * 1e-6
        )
        negotiation = queue.negotiation_s(workers, link.latency_s)
        return pipeline.horovod(work.gradients, work.backward_s, cost, queue, negotiation)
    first = None if config.first_bucket_mb is None else config.first_bucket_mb * MEGA
    return pipeline.ddp(work.gradients, work.backward_s, cost, config.bucket_mb * MEGA, first)


def _input_seconds(profile: Profile, cluster: Cluster, per_worker: float, workers: int) -> float:
    on_node = min(workers, cluster.devices_per_node)
    nodes = math.ceil(workers / cluster.devices_per_node)
    bytes_s = min(cluster.storage_node_bytes_s, cluster.storage_bytes_s / nodes) / on_node
    loader = 0.0 if profile.input is None else per_worker / profile.input.images_per_s
    return max(per_worker * profile.sample_bytes / bytes_s, loader)


def limit_of(
    now: PredictedStep, base: PredictedStep, batch: int, workers: int, scaling: Scaling
) -> str:
    """Name what costs most against perfect scaling of `base`, the step of one worker."""
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
