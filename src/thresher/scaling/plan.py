"""Plan a training run: batch size, learning rate, warm-up and number of workers."""

import math
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from thresher.data.pack import Pack
from thresher.data.split import HoldOut
from thresher.errors import InvalidValueError
from thresher.models.registry import check
from thresher.options import option, validate
from thresher.scaling import candidates
from thresher.scaling.batch_plan import BatchPlan, plan_batches
from thresher.scaling.batch_table import check_data
from thresher.scaling.candidates import CandidateRun, Machine
from thresher.scaling.catalog import load_cluster
from thresher.scaling.cluster import DevicePrecision
from thresher.scaling.measure import MeasureConfig, measure, trained_shape
from thresher.scaling.pilot import Pilot, PilotConfig, required, run_pilot
from thresher.scaling.profile import Profile
from thresher.scaling.sample_fit import SampleFit
from thresher.scaling.schedule_offer import ScheduleOffer, offer_schedule
from thresher.scaling.study_options import flags, settings_at
from thresher.training.config import TrainConfig
from thresher.training.presets import preset
from thresher.training.split import DataConfig, split_samples


@dataclass(frozen=True, kw_only=True)
class PlanConfig(PilotConfig):
    """Options of `plan`; without `from_`, `data` is required."""

    from_: Path | None = None
    """A table of batch sizes and samples, steps or epochs to the target (CSV), or the folder of a
    study, to fit in place of pilots. Without `data`, only the batch size is planned."""
    samples_per_epoch: int | None = option(None, ge=1, only_with={"from_": True})
    """Training samples in an epoch, for a table of epochs (default: its column of that name, else
    the training samples of `data`)."""
    figure: Path | None = None
    """Draw time against cost here (.png or .svg); needs `data`."""
    cluster: str = "local"
    """summit, 8xa100, 8xh100, 100gbe, 10gbe, local (this machine), or a FILE.toml of your own."""
    budget: str | None = None
    """The most that the run may cost: money (250) or hours (3h)."""
    epochs: float = option(30.0, gt=0, only_with={"from_": False, "target_accuracy": True})
    """Epochs to the target at the pilot's batch size, if the pilot does not reach it."""
    precision: DevicePrecision = option("fp32", only_with={"data": True})
    """Precision of the layers."""
    max_workers: int = option(1024, ge=1, only_with={"data": True})
    """The most workers to consider."""
    profile: Path | None = None
    """A profile of this model from `thresher scale measure` (default: measured now, briefly)."""


@dataclass(frozen=True)
class TrainingPlan:
    """Result of `plan`."""

    model: str
    data: str
    cluster: str
    pilot: Pilot | None
    """The pilots; None if the plan is from a table."""
    fit: SampleFit | None
    """The fit to a table; None if the plan is from pilots."""
    critical_batch: float
    critical_batch_low: float | None
    """Low end of its interval; None if there is no bound."""
    critical_batch_high: float | None
    overhead: float
    """Seconds of a real training step over those of the network alone."""
    samples_to_target: Literal["measured", "assumed", "fitted"]
    recommended: CandidateRun
    reason: str
    """Why that run is recommended, and what makes its time uncertain."""
    command: str
    """The command that trains it."""
    candidates: list[CandidateRun]
    """All runs that were considered."""
    schedule: ScheduleOffer | None = None
    """A growing batch in place of the recommended one, if it saves a tenth of the steps."""


def plan(config: PlanConfig) -> TrainingPlan:
    """Recommend a batch size, learning rate, warm-up and number of workers.

    Short pilots at several batch sizes on this machine estimate the critical batch, which gives the
    samples that each batch size needs; with `from_` they are fitted to a table instead. The profile
    and the cluster give the seconds of a step. Takes minutes the first time, for the pilots.
    """
    validate(config)
    budget = candidates.parse_budget(config.budget)
    data = required(config.data)
    pack = Pack.open(data)
    train_samples = _check_inputs(config, pack)
    table = None if config.from_ is None else plan_table(config, train_samples)
    runs_like = {} if table is None else table.settings
    _check_model(config, settings_at(1, runs_like))
    cluster = load_cluster(config.cluster)
    if budget.money is not None and cluster.device_hour is None:
        fix = "add [price] device_hour to its file, or give hours (3h)"
        raise InvalidValueError(f"cluster {cluster.name} has no price", fix)
    cluster.peak_flops(config.precision)
    machine = Machine(_profile(config, pack), cluster, config.precision)
    pilot: Pilot | None = None
    fit: SampleFit | None = None
    because = no_bend = None
    if table is None:
        pilot = run_pilot(config)
        held = _held_out(config, pilot, pack)
        train_samples = train_samples if held is None else pilot.train_samples
        samples = pilot.sample_model(config.epochs, train_samples)
        machine = machine.with_overhead(pilot.batch_size, pilot.images_per_s)
        low, high = pilot.critical_batch_low, pilot.critical_batch_high
        share = candidates.PILOT_SHARE
    else:
        held, train_samples = _split_as_in_study(config, pack, settings_at(1, runs_like))
        samples, fit = table.sample_model(train_samples), table.fit
        low, high = fit.b_crit_low, fit.b_crit_high
        because, no_bend = None if fit.fits else table.reason, fit.no_bend
        share = candidates.SAFE
    runs = candidates.candidate_runs(samples, machine, config.max_workers)
    best, reason = candidates.recommend(
        runs, samples.critical_batch, budget, because, share, no_bend
    )
    assumed = pilot is not None and not pilot.reached
    return TrainingPlan(
        model=config.model,
        data=data,
        cluster=cluster.name,
        pilot=pilot,
        fit=fit,
        critical_batch=samples.critical_batch,
        critical_batch_low=low,
        critical_batch_high=high,
        overhead=machine.overhead,
        samples_to_target="assumed" if assumed else "fitted" if table else "measured",
        recommended=best,
        reason=f"{reason}; {candidates.uncertainty(best, assumed)}",
        command=_command(config, best, held, settings_at(best.batch_size, runs_like)),
        candidates=runs,
        schedule=None if pilot is None else _schedule(config, pilot, best, train_samples, held),
    )


def plan_table(config: PlanConfig, train_samples: int | None = None) -> BatchPlan:
    """Fit the table of `from_`, and recommend a batch size from it alone; trains nothing."""
    validate(config)
    if config.from_ is None:
        raise InvalidValueError("data is required", "or give a table with `from_`", "data")
    per_epoch = config.samples_per_epoch or train_samples
    return plan_batches(config.from_, config.target_accuracy, per_epoch, config.lr, config.seed)


def _check_inputs(config: PlanConfig, pack: Pack) -> int:
    """Refuse wrong inputs before this machine is measured, which takes a while.

    Returns the number of samples that `thresher train` trains on.
    """
    check(config.model)
    if config.from_ is None and preset(config.model):
        # Their rates, momenta and augmentation are for one batch size, which pilots change.
        raise InvalidValueError(
            f"pilots do not train {config.model} with the settings that `thresher train` gives it",
            "plan from runs at several batch sizes with `from_`",
            "model",
        )
    if config.from_ is not None and config.from_.is_dir():
        check_data(config.from_, pack)
    if config.profile is not None:
        Profile.load(config.profile, config.model)
    if pack.image_shape is None and (config.from_ is None or config.profile is None):
        raise InvalidValueError(
            f"the images of {pack.name} differ in size, and pilots and measurements need one",
            "pack them with `thresher data pack --resize`, or give `from_` and a `profile`",
            "data",
        )
    return int((~HoldOut().mask(pack)).sum())


def _profile(config: PlanConfig, pack: Pack) -> Profile:
    if config.profile is None:
        batch = min(256, max(8, len(pack.indices("train")) // 4))
        return measure(
            MeasureConfig(
                model=config.model,
                batch_size=batch,
                data=config.data,
                precision=_trained_at(config),
                device=config.device,
                seconds_per_batch=0.3,
            )
        )
    profile = Profile.load(config.profile, config.model)
    fix = f"measure {config.model} on {config.data} with `thresher scale measure`"
    if profile.classes != len(pack.classes):
        what = f"profile {config.profile} has {profile.classes} classes, and {config.data} has"
        raise InvalidValueError(f"{what} {len(pack.classes)}", fix)
    shape = trained_shape(pack, profile.image_size if pack.image_shape is None else None)
    # A profile has one side only; the bytes of an image tell whether it was square.
    stored = {math.prod(shape), math.prod(pack.image_shape or shape)}
    if (profile.channels, profile.image_size) != shape[:2] or profile.sample_bytes not in stored:
        what = (
            f"profile {config.profile} is not of images of channels, height and width {shape}, as "
            f"{config.model} is trained on with {config.data}"
        )
        raise InvalidValueError(what, fix)
    return profile


def _schedule(
    config: PlanConfig, pilot: Pilot, best: CandidateRun, train_samples: int, held: int | None
) -> ScheduleOffer | None:
    """Return a growing batch that begins with that of a run."""
    offer = offer_schedule(pilot.critical_curve, best.batch_size, best.samples, train_samples)
    if offer is None:
        return None
    # Far below the critical batch the rate that works is proportional to the batch.
    grown = replace(best, epochs=offer.samples / train_samples)
    options = f" --base-batch {best.batch_size} --lr-rule linear --batch-schedule noise --out RUN"
    command = _command(config, grown, held).removesuffix(" --out RUN")
    return replace(offer, command=command + options)


def _held_out(config: PlanConfig, pilot: Pilot, pack: Pack) -> int | None:
    """Return how many training samples the planned run holds out to watch its target on.

    As many as the pilots, which counted samples to the target on them; without, the run would watch
    the test images. None if there is no target, or if the pack has a validation split.
    """
    if config.target_accuracy is None or pack.meta.splits.get("validation"):
        return None
    return len(pack.indices("train")) - pilot.train_samples


def _split_as_in_study(
    config: PlanConfig, pack: Pack, settings: TrainConfig | None
) -> tuple[int | None, int]:
    """Return how many training samples the planned run holds out, and how many it trains on.

    It holds out as many as the runs of the study `from_` to watch its target on; None if they held
    out none, or if there is no study or no target.
    """
    data, held = required(config.data), None
    if settings is None:
        return None, split_samples(DataConfig(data=data), pack).count
    if config.target_accuracy is not None and settings.validation is not None:
        held = int(settings.hold_out.mask(pack).sum()) or None
    planned = DataConfig(
        data=data, selection=settings.selection, validation=held, split_seed=settings.split_seed
    )
    return held, split_samples(planned, pack).count


def _check_model(config: PlanConfig, settings: TrainConfig | None) -> None:
    """Refuse to plan a model from a study of another one."""
    if settings is not None and settings.model != config.model:
        what = f"the runs of {config.from_} trained {settings.model}, not {config.model}"
        raise InvalidValueError(what, "plan that model, or give a CSV file", "model")


def _trained_at(config: PlanConfig) -> Literal["fp32", "bf16", "fp16"]:
    """Return the precision of training; tf32 is how some GPUs compute fp32."""
    return "fp32" if config.precision == "tf32" else config.precision


def _command(
    config: PlanConfig, run: CandidateRun, held: int | None, settings: TrainConfig | None = None
) -> str:
    """Return the command of a run; with `settings`, those of a study's runs, trained as they."""
    words = [
        f"thresher train --data {shlex.quote(str(config.data))} --model {config.model}",
        f"--batch-size {run.batch_size} --workers {run.workers}",
        *([] if run.lr is None else [f"--lr {run.lr:.4g}"]),
        f"--warmup-epochs {run.warmup_epochs:.3g}",
        f"--epochs {math.ceil(run.epochs)}",
    ]
    words.append(f"--precision {_trained_at(config)}")
    if config.profile is not None and Pack.open(required(config.data)).image_shape is None:
        words.append(f"--image-size {Profile.load(config.profile).image_size}")
    if held is not None:
        words.append(f"--validation {held}")
    if config.target_accuracy is not None:
        words.append(f"--target-accuracy {config.target_accuracy:g}")
        if "evaluate_every" in preset(config.model):
            words.append("--evaluate-every 1")
    words += [] if settings is None else flags(settings)
    return " ".join([*words, "--out RUN"])
