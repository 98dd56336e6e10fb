"""`thresher plan`: recommend batch size, learning rate and workers."""

from dataclasses import asdict

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.scaling.candidates import worth_showing
from thresher.scaling.plan import PlanConfig, TrainingPlan
from thresher.scaling.plan import plan as make_plan


def plan(config: PlanConfig) -> Outcome:
    """Recommend batch size, learning rate, warm-up and number of workers, with time and cost. Two
    short pilots on this machine estimate the critical batch, and from it the samples that each
    batch size needs; the profile and the cluster give the time of a step.
    """
    ensure_pack(config.data)
    result = make_plan(config)
    values = asdict(result)
    values["recommended"] |= {key: values.pop(key) for key in ("reason", "command")}
    values["rows"] = values.pop("candidates")
    return Outcome(values, _text(result))


def _text(result: TrainingPlan) -> str:
    best, pilot = result.recommended, result.pilot
    table = columns(
        f"{result.model} on {result.data}, cluster {result.cluster}: to accuracy "
        f"{pilot.target:.3f}",
        "|workers|batch|lr|warm-up|epochs|time|low–high|cost|device h|eff. %|limit",
        [
            (
                "→" if run == best else "",
                *(f"{run.workers:,}", f"{run.batch_size:,}", f"{run.lr:.3g}"),
                *(f"{run.warmup_epochs:.2g}", f"{run.epochs:.1f}", _time(run.seconds)),
                f"{_time(run.seconds_low)}–{_time(run.seconds_high)}",
                "–" if run.cost is None else f"{run.cost:.2f}",
                *(f"{run.device_hours:.3g}", f"{100 * run.efficiency:.0f}", run.limit),
            )
            for run in worth_showing(result.candidates, best)
        ],
    )
    lines = [
        table,
        "",
        f"Recommended: {best.workers} workers, batch {best.batch_size}, learning rate "
        f"{best.lr:.3g}, warm-up {best.warmup_epochs:.2g} epochs, {_time(best.seconds)}.",
        f"Reason: {result.reason}.",
        f"The pilot trained at {pilot.images_per_s:,.0f} images/s and reached "
        f"{pilot.accuracy:.3f} after {pilot.samples:,} samples. Critical batch: "
        f"{_count(pilot.noise_scale)} by the gradient noise scale, "
        f"{_count(pilot.critical_by_samples)} by the samples that batches {pilot.batch_size} and "
        f"{pilot.large_batch} needed.",
    ]
    if result.samples_to_target == "assumed":
        lines.append(
            "The pilot did not reach the target: absolute times depend on the assumed --epochs."
        )
    return "\n".join([*lines, "", result.command])


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
