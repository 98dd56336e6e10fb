"""`thresher plan`: recommend batch size, learning rate and workers."""

from dataclasses import asdict
from typing import Any

from thresher.cli.columns import columns
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.errors import InvalidValueError
from thresher.scaling.batch_plan import BatchPlan, interval_text
from thresher.scaling.candidates import worth_showing
from thresher.scaling.pilot import Pilot
from thresher.scaling.plan import PlanConfig, TrainingPlan, plan_table
from thresher.scaling.plan import plan as make_plan
from thresher.scaling.sample_fit import SampleFit
from thresher.scaling.sample_model import size_text
from thresher.scaling.schedule_offer import ScheduleOffer

WARMUP = (
    "The warm-up follows a rule that is fitted to two published points (ImageNet: 5 of 90 epochs "
    "at batch 7,680, 10 at 30,720)."
)


def plan(config: PlanConfig) -> Outcome:
    """Recommend batch size, learning rate, warm-up and number of workers, with time and cost.
    Short pilots at several batch sizes on this machine estimate the critical batch, and from it the
    samples that each batch size needs; with `from_`, a table of your own runs is fitted instead.
    The profile and the cluster give the time of a step.
    """
    if config.data is None:
        on_times = ("figure", "budget", "profile", "cluster")
        given = (name for name in on_times if getattr(config, name) != getattr(PlanConfig, name))
        name = next(given, None)
        if name is not None and config.from_ is not None:
            fix = f"give `data`, or leave `{name}` out"
            raise InvalidValueError(f"`{name}` needs times, and a table alone has none", fix)
        table = plan_table(config)
        return Outcome(_values(table), _table_text(table))
    ensure_pack(config.data)
    result = make_plan(config)
    if config.figure is not None:
        from thresher.report.plan_figure import plan_figure

        plan_figure(result.candidates, result.recommended, config.figure)
    return Outcome(_values(result), _text(result))


def _values(result: TrainingPlan | BatchPlan) -> dict[str, Any]:
    """Return the result as JSON values."""
    values = asdict(result)
    values.pop("settings", None)  # those of a study's runs are in its folder
    values["recommended"] |= {"reason": values.pop("reason")}
    pilot = values.get("pilot") or {}
    branches = pilot.get("branches") or {}
    stages = (stage["fit"] for stage in branches.get("stages", ()))
    drawn = (values["fit"], pilot.get("fit"), branches, *stages, *values.get("targets", ()))
    for part in drawn:
        if part:
            del part["draws"]
    if isinstance(result, TrainingPlan):
        values["recommended"] |= {"command": values.pop("command")}
        values["rows"] = values.pop("candidates")
    return values


def _text(result: TrainingPlan) -> str:
    best, priced = result.recommended, result.recommended.cost is not None
    table = columns(
        f"{result.model} on {result.data}, cluster {result.cluster}: {_target(result)}",
        "|workers|batch|lr|warm-up|epochs|time|95 % interval"
        f"{'|cost' * priced}|device hours|efficiency (%)|limit",
        [
            (
                "→" if run == best else "",
                *(f"{run.workers:,}", f"{run.batch_size:,}", _rate(run.lr)),
                *(f"{run.warmup_epochs:.2g}", f"{run.epochs:.1f}", _time(run.seconds)),
                f"{_time(run.seconds_low)}–{_time(run.seconds_high)}",
                *([f"{run.cost:.2f}"] if run.cost is not None else []),
                *(f"{run.device_hours:.3g}", f"{100 * run.efficiency:.0f}", run.limit),
            )
            for run in worth_showing(result.candidates, best)
        ],
    )
    cost = (
        ""
        if best.cost is None
        else f", cost {best.cost:.2f} ({best.cost_low:.2f} to {best.cost_high:.2f})"
    )
    lines = [
        table,
        "",
        f"Recommended: {best.workers} {'worker' if best.workers == 1 else 'workers'}, batch "
        f"{best.batch_size}, learning rate {_rate(best.lr)}, warm-up "
        f"{best.warmup_epochs:.2g} {'epoch' if best.warmup_epochs == 1 else 'epochs'}.",
        f"95 % intervals: {best.samples:,.0f} samples "
        f"({_range(best.samples_low, best.samples_high, ' to ')}), {_time(best.seconds)} "
        f"({_time(best.seconds_low)} to {_time(best.seconds_high)}){cost}.",
        f"Reason: {result.reason}.",
        *([] if result.pilot is None else [_pilot_text(result.pilot)]),
        *([] if result.fit is None else _fit_lines(result.fit)),
        WARMUP,
    ]
    if result.samples_to_target == "assumed":
        lines.append(
            "The pilot did not reach the target: absolute times depend on the assumed --epochs."
        )
    if best.lr is None:
        lines.append("The table has no rates: add a column lr, or give --lr at its smallest batch.")
    lines += ["", result.command]
    if result.schedule is not None:
        lines += ["", _schedule_text(result.schedule), "", result.schedule.command]
    return "\n".join(lines)


def _schedule_text(offer: ScheduleOffer) -> str:
    phases = ", ".join(f"{batch:,} from epoch {epoch}" for epoch, batch in offer.phases)
    return (
        f"A batch that grows with the noise scale ({phases}) is predicted to take {offer.steps:,} "
        f"steps instead of {offer.constant_steps:,}, {100 * offer.steps_saved:.0f} % fewer, and "
        f"{100 * offer.samples_added:.0f} % more samples:"
    )


def _target(result: TrainingPlan) -> str:
    if result.pilot is not None:
        return f"to accuracy {result.pilot.target:.3f}"
    target = "" if result.fit is None else result.fit.target
    return f"to target {target}" if target else "to the target of the table"


def _pilot_text(pilot: Pilot) -> str:
    batches = ", ".join(f"{batch:,}" for batch in pilot.batches[:-1])
    low, high = pilot.critical_batch_low, pilot.critical_batch_high
    ends = f"{_count(low)} to {'unbounded' if high is None else _count(high)}"
    early = ""
    if pilot.branches is None:
        by_samples = _count(None if pilot.fit is None else pilot.fit.b_crit)
        how = f"{by_samples} by the samples that batches {batches} and {pilot.batches[-1]:,} needed"
        if pilot.fit is not None and not pilot.fitted_at_target:
            early = f" to accuracy {float(pilot.fit.target):.3f}, before the target"
    else:
        stages = [_count(stage.fit.critical_batch) for stage in pilot.branches.stages]
        how = f"{', '.join(stages)} by branches early, in the middle and late in training"
    return (
        f"The pilot trained at {pilot.images_per_s:,.0f} images/s and reached "
        f"{pilot.accuracy:.3f} after {pilot.samples:,} samples. Critical batch: "
        f"{_count(pilot.noise_scale)} by the gradient noise scale, {how}{early}. The plan uses "
        f"{size_text(pilot.critical_batch)}, whose 95 % interval is {ends}."
    )


def _table_text(result: BatchPlan) -> str:
    best, fit = result.recommended, result.fit
    target = f" to target {fit.target}" if fit.target else ""
    table = columns(
        f"Samples{target} by batch size",
        "|batch|lr|samples|95 % interval|measured|measured/fit|steps|sample efficiency (%)",
        [
            (
                "→" if row == best else "",
                *(f"{row.batch_size:,}", _rate(row.lr), f"{row.samples:,.0f}"),
                _range(row.samples_low, row.samples_high, "–"),
                "–" if row.measured is None else f"{row.measured:,.0f}",
                "–" if row.measured is None else f"{row.measured / row.samples:.3f}",
                f"{row.steps:,}",
                "–" if fit.below else f"{100 * row.sample_efficiency:.0f}",
            )
            for row in result.rows
        ],
    )
    others = [
        f"Target {other.target}: critical batch {interval_text(other)}."
        for other in result.targets
        if other != fit
    ]
    lines = [f"Recommended: batch {best.batch_size:,}. Reason: {result.reason}.", *_fit_lines(fit)]
    lines.append("For times and workers, give --data, --model and --cluster too.")
    return "\n".join([table, "", *lines, *others])


def _fit_lines(fit: SampleFit) -> list[str]:
    worst = max(map(abs, fit.residuals))
    exact = f"Fit: samples = {fit.e_min:,.0f} × (1 + batch / {size_text(fit.b_crit)})"
    if fit.no_bend is not None:
        same = f"{fit.s_min:,.0f} steps" if fit.below else f"{fit.e_min:,.0f} samples"
        exact = f"Fit: {same} at every batch size"
    solved = fit.method == "two points" and fit.no_bend is None
    found = "through both points" if solved else f"residuals to {100 * worst:.1f} %"
    return [f"{exact}, {found}.", *(f"Warning: {text}." for text in fit.warnings)]


def _range(low: float | None, high: float | None, word: str) -> str:
    return "unknown" if low is None or high is None else f"{low:,.0f}{word}{high:,.0f}"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
