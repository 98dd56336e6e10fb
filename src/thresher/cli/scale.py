"""`thresher scale …`: measure and predict the cost of communication."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.distributed.group import placement
from thresher.errors import counted
from thresher.paths import disk_errors
from thresher.scaling.catalog import load_cluster
from thresher.scaling.compute import amdahl
from thresher.scaling.measure import MeasureConfig, bucket_table
from thresher.scaling.measure import measure as measure_model
from thresher.scaling.predict import PredictConfig, Prediction
from thresher.scaling.predict import predict as predict_steps
from thresher.scaling.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Measure(MeasureConfig):
    out: Path
    """The profile to write (JSON); the figure is written beside it as .png."""


@dataclass(frozen=True, kw_only=True)
class Predict(PredictConfig):
    figure: Path | None = None
    """Draw efficiency against workers into this file."""


def measure(config: Measure) -> Outcome | None:
    """Measure the cost of a training step on this machine: each layer forward and backward at
    batches B, B/2 … 1, gradient bytes by layer and bucket, the all-reduce, its overlap with the
    backward pass, and reading.

    Under torchrun or srun the all-reduce and the step are those of that group, over its links.
    """
    from thresher.report.scaling_figures import profile_figure

    ensure_pack(config.data)
    with disk_errors(config.out):
        config.out.parent.mkdir(parents=True, exist_ok=True)
    profile = measure_model(config)
    if placement().rank:
        return None  # rank 0 writes and prints
    profile.save(config.out)
    figure = config.out.with_suffix(".png")
    profile_figure(profile, figure)
    shown = ("model", "device", "parameters", "gradient_bytes", "batches", "allreduce", "overlap")
    data = {
        **{"profile": str(config.out), "figure": str(figure), "input": profile.input},
        "steps": profile.steps,
        **{name: getattr(profile, name) for name in shown},
        **{"buckets": bucket_table(profile), "amdahl": amdahl(profile)},
    }
    command = shlex.join(["thresher", "scale", "predict", "--profile", str(config.out)])
    return Outcome(data, f"{_measured(profile)}\nFigure: {figure}\nPredict with it: {command}")


def _measured(profile: Profile) -> str:
    limits = amdahl(profile)
    times = [(b.batch, b.forward_s, b.backward_s, b.optimizer_s, b.step_s) for b in profile.batches]
    table = columns(
        f"{profile.model} on {profile.device.name}, "
        f"{profile.gradient_bytes / 1e6:,.1f} MB of gradients, {profile.steps} steps",
        "batch|forward ms|backward ms|optimizer ms|step ms|images/s",
        [(str(n), *(_ms(t) for t in parts), f"{n / parts[-1]:,.0f}") for n, *parts in times],
    )
    lines = [
        table,
        "",
        f"Without communication, {100 * limits.serial:.1f} % of the step would not scale: the "
        f"speed-up is at most {limits.bound:.1f}×. Batch {limits.hard:.0f} can be split over at "
        f"most {limits.hard:.0f} workers; measured speed-up there: {limits.measured:.1f}×.",
    ]
    if a := profile.allreduce:
        rate = 1e-9 / a.seconds_per_byte if a.seconds_per_byte else float("inf")
        lines.append(
            f"All-reduce of {a.workers} workers ({a.backend}): {1e6 * a.latency_s:,.0f} µs per "
            f"message and {rate:,.2f} GB/s (median error of the fit {100 * a.error:.0f} %)."
        )
    if o := profile.overlap:
        lines.append(
            f"DDP step of {o.workers} workers: {1e3 * o.step_s:,.1f} ms, "
            f"{1e3 * o.exposed_s:,.1f} ms of them waiting for gradients "
            f"({100 * o.hidden:.0f} % of the communication is hidden)."
        )
    if profile.input:
        lines.append(f"Reading: {profile.input.images_per_s:,.0f} images/s per worker.")
    return "\n".join(lines)


def predict(config: Predict) -> Outcome:
    """Predict the step on any number of workers of a cluster: computation, communication (total and
    exposed), input, efficiency, and what limits scaling. Low and high bound each step.
    """
    prediction = predict_steps(config)
    if config.figure is not None:
        from thresher.report.scaling_figures import efficiency_figure

        points = [(row.workers, row.efficiency) for row in prediction.rows]
        name = f"{prediction.model} on {config.cluster}, {config.engine}, {config.scaling} scaling"
        efficiency_figure({name: points}, config.figure)
    title = load_cluster(config.cluster).title
    return Outcome(asdict(prediction), _predicted(prediction, title))


def _ms(seconds: float) -> str:
    """Return three significant digits, also of 3.00; more of large numbers."""
    if seconds >= 0.0995:
        return f"{1e3 * seconds:,.0f}"
    return f"{1e3 * seconds:#.3g}" if seconds else "0"


def _predicted(prediction: Prediction, cluster: str) -> str:
    table = columns(
        f"{prediction.model} on {cluster}, {prediction.scaling} scaling (milliseconds per step)",
        "workers|batch|compute|comm.|exposed|input|step|low–high|images/s|eff. %|low–high|limit",
        [
            (
                *(f"{r.workers:,}", f"{r.batch_size:,}"),
                *map(_ms, (r.compute_s, r.communication_s, r.exposed_s, r.input_s, r.step_s)),
                f"{_ms(r.step_low_s)}–{_ms(r.step_high_s)}",
                *(f"{r.images_per_s:,.0f}", f"{100 * r.efficiency:.0f}"),
                f"{100 * r.efficiency_low:.0f}–{100 * r.efficiency_high:.0f}",
                r.limit,
            )
            for r in prediction.rows
        ],
    )
    others = columns(
        f"Alternatives at {counted(prediction.rows[-1].workers, 'worker')}",
        "engine|all-reduce|precision|compress|images/s|eff. %|stops|limit",
        [
            (
                *(a.engine, a.allreduce, a.precision, a.compress),
                *(f"{a.images_per_s:,.0f}", f"{100 * a.efficiency:.1f}"),
                f"{a.stops_paying_at:,}" if a.stops_paying_at else "–",
                a.limit,
            )
            for a in prediction.alternatives
        ],
    )
    source = "measured on this device"
    if prediction.compute == "roofline":
        source = "estimated for this device by a roofline model, so the bounds are wide"
    verdict = "Every increase in this list adds at least half of the ideal throughput."
    if prediction.stops_paying_at:
        verdict = (
            f"Scaling stops paying off at {prediction.stops_paying_at:,} workers, "
            f"limited by {prediction.limit}."
        )
    return "\n".join([table, "", verdict, f"Compute times were {source}.", "", others])
