"""`thresher plan`: which batch, rate and workers to use."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError


@dataclass(frozen=True)
class Plan:
    data: str
    """A pack's folder, or its name in the cache."""
    model: str = "tiny"
    """The network to train."""
    cluster: str = "local"
    """summit, 8xa100, 8xh100, 100gbe, 10gbe, local (this machine), or a FILE.toml of your own."""
    target_accuracy: float | None = None
    """Validation accuracy to reach, 0 to 1 (default: what the pilot reaches)."""
    budget: str | None = None
    """Money (250) or hours (3h) that the run may take."""
    epochs: float = 30.0
    """Epochs to the target at the pilot's batch, where the pilot does not get there itself."""
    pilot_epochs: float = 8.0
    """How long each of the two pilots may train."""
    pilot_batch: int = 16
    """The smaller pilot's batch; the other's is eight times it."""
    lr: float = 0.03
    """The pilot's learning rate: one that works at its batch."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """What the layers compute in."""
    max_workers: int = 1024
    """The most workers to consider."""
    profile: Path | None = None
    """A profile of this model from `thresher scale measure` (default: measured now, briefly)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the pilot runs."""
    seed: int = 0
    """The pilot's seed."""


def plan(config: Plan) -> Outcome:
    """Say which batch, rate, warm-up and number of workers to use, how long it takes and what it
    costs. Two short pilots here measure the speed, the gradient's noise and the samples to an
    accuracy: from them comes the critical batch, and with it the samples that each batch needs;
    the profile and the cluster say how long a step takes.
    """
    _check(config)
    from thresher.scaling import plan as p
    from thresher.scaling.cluster import load

    budget = p.parse_budget(config.budget)
    cluster = load(config.cluster)
    if budget.money is not None and cluster.device_hour is None:
        raise ThresherError(
            f"the cluster {cluster.name} has no price",
            "add [price] device_hour to its file, or give hours (3h)",
        )
    cluster.peak_flops(config.precision)
    profile = _profile(config)
    from thresher.scaling.pilot import run_pilot

    pilot = run_pilot(
        config.data,
        config.model,
        config.pilot_batch,
        config.lr,
        config.pilot_epochs,
        config.target_accuracy,
        config.device,
        config.seed,
    )
    samples = pilot.samples if pilot.reached else config.epochs * pilot.train_samples
    stats = p.Statistics(
        pilot.critical_batch, samples, pilot.batch_size, pilot.lr, pilot.train_samples
    )
    overhead = p.overhead(profile, cluster, config.precision, pilot.batch_size, pilot.images_per_s)
    found = p.options(stats, profile, cluster, config.precision, config.max_workers, overhead)
    best, reason = p.recommend(found, stats.critical_batch, budget)
    command = _command(config, best)
    data = {
        "model": config.model,
        "data": config.data,
        "cluster": cluster.name,
        "pilot": pilot,
        "critical_batch": stats.critical_batch,
        "overhead": overhead,
        "samples_to_target": "measured" if pilot.reached else "assumed",
        "recommended": {**best.as_dict(), "reason": reason, "command": command},
        "rows": [option.as_dict() for option in found],
    }
    return Outcome(data, _text(data, p.thin(found, best), best, pilot))


def _check(config: Plan) -> None:
    if config.target_accuracy is not None and not 0 < config.target_accuracy <= 1:
        raise ThresherError(
            f"a target accuracy of {config.target_accuracy:g} cannot be", "give it from 0 to 1"
        )
    for name in ("epochs", "pilot_epochs", "lr"):
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ThresherError(f"--{name.replace('_', '-')} must be above 0, not {value:g}")
    for name in ("pilot_batch", "max_workers"):
        if getattr(config, name) < 1:
            raise ThresherError(f"--{name.replace('_', '-')} must be 1 at least")


def _profile(config: Plan) -> Any:
    """The one given, checked against the model and the data; else one measured now."""
    from thresher.data.pack import Pack
    from thresher.scaling.measure import measure
    from thresher.scaling.profile import Profile

    ensure_pack(config.data)
    pack = Pack.open(config.data)
    if config.profile is None:
        precision = "fp32" if config.precision == "tf32" else config.precision
        batch = min(256, max(8, len(pack.indices("train")) // 4))
        return measure(
            config.model,
            batch,
            data=config.data,
            precision=precision,
            device=config.device,
            seconds_per_batch=0.3,
        )
    profile = Profile.load(config.profile, config.model)
    if profile.classes != len(pack.classes):
        raise ThresherError(
            f"the profile {config.profile} is of {profile.classes} classes, and {config.data} has "
            f"{len(pack.classes)}",
            f"`thresher scale measure --model {config.model} --data {config.data} --out …`",
        )
    return profile


def _command(config: Plan, best: Any) -> str:
    words = [
        f"thresher train --data {config.data} --model {config.model}",
        f"--batch-size {best.batch_size} --workers {best.workers}",
        f"--lr {best.lr:.4g} --warmup-epochs {best.warmup_epochs:.3g}",
        f"--epochs {math.ceil(best.epochs)}",
    ]
    if config.precision != "fp32":
        words.append(f"--precision {config.precision}")
    if config.target_accuracy is not None:
        words.append(f"--target-accuracy {config.target_accuracy:g}")
    return " ".join([*words, "--out RUN"])


def _text(data: dict[str, Any], rows: list[Any], best: Any, pilot: Any) -> str:
    table = columns(
        f"{data['model']} on {data['data']}, cluster {data['cluster']}: to accuracy "
        f"{pilot.target:.3f}",
        (
            "",
            "workers",
            "batch",
            "rate",
            "warm-up",
            "epochs",
            "time",
            "low–high",
            "cost",
            "device h",
            "eff. %",
            "limit",
        ),
        [
            (
                "→" if o == best else "",
                f"{o.workers:,}",
                f"{o.batch_size:,}",
                f"{o.lr:.3g}",
                f"{o.warmup_epochs:.2g}",
                f"{o.epochs:.1f}",
                _time(o.seconds),
                f"{_time(o.seconds_low)}–{_time(o.seconds_high)}",
                "–" if o.cost is None else f"{o.cost:.2f}",
                f"{o.device_hours:.3g}",
                f"{100 * o.efficiency:.0f}",
                o.limit,
            )
            for o in rows
        ],
    )
    said = data["recommended"]
    lines = [
        table,
        "",
        f"Recommended: {best.workers} workers, batch {best.batch_size}, rate {best.lr:.3g}, "
        f"warm-up {best.warmup_epochs:.2g} epochs, {_time(best.seconds)}.",
        f"Why: {said['reason']}.",
        f"The pilot saw {pilot.images_per_s:,.0f} images/s here and reached "
        f"{pilot.accuracy:.3f} after {pilot.samples:,} samples. The critical batch: "
        f"{_count(pilot.noise_scale)} by the gradient's noise, "
        f"{_count(pilot.critical_by_samples)} by the samples that batches {pilot.batch_size} and "
        f"{pilot.large_batch} needed.",
    ]
    if data["samples_to_target"] == "assumed":
        lines.append(
            "It did not reach the target: the times rest on the --epochs assumed, and only their "
            "ratios on measurement."
        )
    return "\n".join([*lines, "", said["command"]])


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
