"""Plan a training run: batch size, learning rate, warm-up and number of workers."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thresher.data.pack import Pack
from thresher.errors import InvalidValueError
from thresher.models import registry
from thresher.options import option, validate
from thresher.scaling import candidates
from thresher.scaling.candidates import CandidateRun, Machine
from thresher.scaling.catalog import load_cluster
from thresher.scaling.cluster import DevicePrecision
from thresher.scaling.measure import MeasureConfig, measure
from thresher.scaling.pilot import Pilot, PilotConfig, run_pilot
from thresher.scaling.profile import Profile


@dataclass(frozen=True, kw_only=True)
class PlanConfig(PilotConfig):
    """Options of `plan`."""

    cluster: str = "local"
    """summit, 8xa100, 8xh100, 100gbe, 10gbe, local (this machine), or a FILE.toml of your own."""
    budget: str | None = None
    """The most that the run may cost: money (250) or hours (3h)."""
    epochs: float = option(30.0, gt=0)
    """Epochs to the target at the pilot's batch size, if the pilot does not reach it."""
    precision: DevicePrecision = "fp32"
    """Precision of the layers."""
    max_workers: int = option(1024, ge=1)
    """The most workers to consider."""
    profile: Path | None = None
    """A profile of this model from `thresher scale measure` (default: measured now, briefly)."""


@dataclass(frozen=True)
class TrainingPlan:
    """Result of `plan`."""

    model: str
    data: str
    cluster: str
    pilot: Pilot
    critical_batch: float
    overhead: float
    """Seconds of a real training step over those of the network alone."""
    samples_to_target: Literal["measured", "assumed"]
    recommended: CandidateRun
    reason: str
    """Why that run is recommended."""
    command: str
    """The command that trains it."""
    candidates: list[CandidateRun]
    """All runs that were considered."""


def plan(config: PlanConfig) -> TrainingPlan:
    """Recommend a batch size, learning rate, warm-up and number of workers.

    Two short pilots on this machine estimate the critical batch, which gives the samples that each
    batch size needs; the profile and the cluster give the seconds of a step. Takes minutes the
    first time, for the pilots.
    """
    validate(config)
    budget = candidates.parse_budget(config.budget)
    _check_inputs(config)
    cluster = load_cluster(config.cluster)
    if budget.money is not None and cluster.device_hour is None:
        fix = "add [price] device_hour to its file, or give hours (3h)"
        raise InvalidValueError(f"cluster {cluster.name} has no price", fix)
    cluster.peak_flops(config.precision)
    machine = Machine(_profile(config), cluster, config.precision)
    pilot = run_pilot(config)
    samples = pilot.sample_model(config.epochs)
    machine = machine.with_overhead(pilot.batch_size, pilot.images_per_s)
    runs = candidates.candidate_runs(samples, machine, config.max_workers)
    best, reason = candidates.recommend(runs, samples.critical_batch, budget)
    return TrainingPlan(
        model=config.model,
        data=config.data,
        cluster=cluster.name,
        pilot=pilot,
        critical_batch=samples.critical_batch,
        overhead=machine.overhead,
        samples_to_target="measured" if pilot.reached else "assumed",
        recommended=best,
        reason=reason,
        command=_command(config, best),
        candidates=runs,
    )


def _check_inputs(config: PlanConfig) -> None:
    """Refuse wrong inputs before this machine is measured, which takes a while."""
    Pack.open(config.data)
    registry.check(config.model)
    if config.profile is not None:
        Profile.load(config.profile, config.model)


def _profile(config: PlanConfig) -> Profile:
    pack = Pack.open(config.data)
    if config.profile is None:
        batch = min(256, max(8, len(pack.indices("train")) // 4))
        return measure(
            MeasureConfig(
                model=config.model,
                batch_size=batch,
                data=config.data,
                precision="fp32" if config.precision == "tf32" else config.precision,
                device=config.device,
                seconds_per_batch=0.3,
            )
        )
    profile = Profile.load(config.profile, config.model)
    if profile.classes != len(pack.classes):
        what = f"profile {config.profile} has {profile.classes} classes, and {config.data} has"
        fix = f"measure {config.model} on {config.data} with `thresher scale measure`"
        raise InvalidValueError(f"{what} {len(pack.classes)}", fix)
    return profile


def _command(config: PlanConfig, run: CandidateRun) -> str:
    words = [
        f"thresher train --data {config.data} --model {config.model}",
        f"--batch-size {run.batch_size} --workers {run.workers}",
        f"--lr {run.lr:.4g} --warmup-epochs {run.warmup_epochs:.3g}",
        f"--epochs {math.ceil(run.epochs)}",
    ]
    if config.precision != "fp32":
        words.append(f"--precision {config.precision}")
    if config.target_accuracy is not None:
        words.append(f"--target-accuracy {config.target_accuracy:g}")
    return " ".join([*words, "--out RUN"])
