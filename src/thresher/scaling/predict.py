"""Predict throughput and efficiency on any number of workers of a cluster."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.options import option, validate
from thresher.scaling.catalog import load_cluster
from thresher.scaling.cluster import Cluster
from thresher.scaling.compute import measured_here
from thresher.scaling.costs import ALGORITHMS, TRAINED, Fabric, compression
from thresher.scaling.profile import Profile
from thresher.scaling.step import Scaling, StepConfig, limit_of, predict_step

PAYS = 0.5
"""More workers pay off while they add at least half of the images per second they should."""

MOST_WORKERS = 4096


def powers(low: int, high: int) -> list[int]:
    """Return low, 2·low, 4·low … up to `high`."""
    numbers = []
    while low <= high:
        numbers.append(low)
        low *= 2
    return numbers


@dataclass(frozen=True, kw_only=True)
class PredictConfig(StepConfig):
    """Options of `predict`."""

    profile: Path
    """A profile written by `thresher scale measure`."""
    cluster: str = "local"
    """summit, 8xa100, 8xh100, 100gbe, 10gbe, local (this machine), or a FILE.toml of your own."""
    workers: tuple[int, ...] | None = option(None, ge=1)
    """Numbers of workers (default: powers of two up to 4,096 and the size of the cluster)."""
    model: str | None = None
    """Refuse a profile of another model than this."""


@dataclass(frozen=True)
class PredictionRow:
    """A predicted step on one number of workers. Seconds are per step."""

    workers: int
    batch_size: int
    """The global batch."""
    per_worker_batch: float
    compute_s: float
    communication_s: float
    exposed_s: float
    """Communication that the backward pass does not hide."""
    input_s: float
    step_s: float
    step_low_s: float
    step_high_s: float
    images_per_s: float
    efficiency: float
    """Images per second against perfect scaling of one worker of the same cluster."""
    efficiency_low: float
    efficiency_high: float
    allreduce: str
    """The all-reduce algorithm used for the whole gradient."""
    limit: str
    """What costs most against perfect scaling."""


@dataclass(frozen=True)
class Alternative:
    """The same run with another engine, all-reduce, precision or compression."""

    engine: str
    allreduce: str
    precision: str
    compress: str
    images_per_s: float
    """On the largest number of workers."""
    efficiency: float
    """On the largest number of workers."""
    stops_paying_at: int | None
    limit: str
    """Limit where it stops paying, or on the largest number of workers."""


@dataclass(frozen=True)
class Prediction:
    """Result of `predict`."""

    model: str
    cluster: str
    scaling: Scaling
    compute: Literal["measured", "roofline"]
    """Whether compute times were measured on the cluster's device or estimated for it."""
    rows: list[PredictionRow]
    stops_paying_at: int | None
    """First number of workers that adds less than half of what it should; None if all pay off."""
    limit: str | None
    """What limits scaling there."""
    alternatives: list[Alternative]


def predict(config: PredictConfig) -> Prediction:
    """Predict the step on each number of workers, and with other engines and algorithms."""
    validate(config)
    profile = Profile.load(config.profile, config.model)
    compression(config.compress)  # raises if it is unknown
    cluster = load_cluster(config.cluster)  # last: the first use of `local` measures this machine
    workers = sorted(set(config.workers or powers(1, min(MOST_WORKERS, cluster.capacity))))
    rows = predict_rows(profile, cluster, workers, config)
    stop = stops_paying(rows)
    return Prediction(
        model=profile.model,
        cluster=cluster.name,
        scaling=config.scaling,
        compute="measured" if measured_here(profile, cluster, config.precision) else "roofline",
        rows=rows,
        stops_paying_at=stop.workers if stop else None,
        limit=stop.limit if stop else None,
        alternatives=alternatives(profile, cluster, workers, config),
    )


def predict_rows(
    profile: Profile, cluster: Cluster, workers: Sequence[int], config: StepConfig
) -> list[PredictionRow]:
    """Predict one row per number of workers."""
    for count in workers:
        if not 1 <= count <= cluster.capacity:
            what = f"workers must be in [1, {cluster.capacity:,}] on cluster {cluster.name}"
            raise InvalidValueError(f"{what}, got {count:,}", "", "workers")
    base = [predict_step(profile, cluster, 1, config, level) for level in range(3)]
    batch_one = config.batch_size or profile.batch_size
    fabric = Fabric.of(cluster)
    rows = []
    for count in workers:
        levels = [predict_step(profile, cluster, count, config, level) for level in range(3)]
        batch = batch_one if config.scaling == "strong" else batch_one * count
        speeds = [batch / s.step_s for s in levels]
        ideal = [count * batch_one / s.step_s for s in base]
        shares = sorted(s / i for s, i in zip(speeds, ideal, strict=True))
        likely = levels[1]
        algorithm: str = config.allreduce
        if algorithm == "best":
            algorithm = fabric.cheapest(profile.gradient_bytes, count) if count > 1 else "none"
        rows.append(
            PredictionRow(
                workers=count,
                batch_size=batch,
                per_worker_batch=batch / count,
                compute_s=likely.compute_s,
                communication_s=likely.communication_s,
                exposed_s=likely.exposed_s,
                input_s=likely.input_s,
                step_s=likely.step_s,
                step_low_s=min(s.step_s for s in levels),
                step_high_s=max(s.step_s for s in levels),
                images_per_s=speeds[1],
                efficiency=speeds[1] / ideal[1],
                efficiency_low=shares[0],
                efficiency_high=shares[-1],
                allreduce=algorithm,
                limit=limit_of(likely, base[1], batch_one, count, config.scaling),
            )
        )
    return rows


def stops_paying(rows: Sequence[PredictionRow]) -> PredictionRow | None:
    """Return the first row whose workers add less than half of what they should, or None."""
    for before, after in itertools.pairwise(rows):
        gain = after.images_per_s / before.images_per_s - 1
        if gain < PAYS * (after.workers / before.workers - 1):
            return after
    return None


def alternatives(
    profile: Profile, cluster: Cluster, workers: Sequence[int], config: StepConfig
) -> list[Alternative]:
    """Predict the same run with each all-reduce, precision, compression and engine."""
    changes: list[dict[str, str]] = [
        {"engine": "ddp", "allreduce": a, "precision": p, "compress": "none"}
        for p in cluster.device.peak_tflops
        for a in ALGORITHMS
    ]
    best = {"engine": "ddp", "allreduce": "best", "precision": config.precision}
    changes += [{**best, "compress": c} for c in ("fp16", "int8", *TRAINED)]
    changes.append({**best, "engine": "horovod", "compress": "none"})
    results = []
    for change in changes:
        rows = predict_rows(profile, cluster, workers, replace(config, **change))  # type: ignore[arg-type]
        stop = stops_paying(rows)
        results.append(
            Alternative(
                **change,
                images_per_s=rows[-1].images_per_s,
                efficiency=rows[-1].efficiency,
                stops_paying_at=stop.workers if stop else None,
                limit=stop.limit if stop else rows[-1].limit,
            )
        )
    return results
