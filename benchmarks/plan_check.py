"""Compare what `thresher plan` says with a sweep, by samples to a target.

    python -m benchmarks.plan_check --data digits --out build/plan-digits
    python -m benchmarks.plan_check --data cifar10 --out build/plan-cifar10   (a GPU; minutes)

The pilots train at three batch sizes for a few epochs. The sweep trains at every batch size until
the target and counts the samples, interpolated between evaluations. The rate of each batch size is
the best of several factors on the plan's rate, tuned with seeds of its own on validation accuracy.
The plan is held to three marks: the recommended batch needs at most 1.25 times the samples of the
sweep's best, predicted samples are within 30 % up to 16 times the recommended batch, and the
interval of the critical batch covers the one fitted to the sweep. The folder holds the report
(plan_check.md), the sweep and the pilots as tables for `thresher plan --from` (plan_check.csv,
pilots.csv), and the runs: the same command again resumes.
"""

import argparse
import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.machine import page, publish, table
from thresher.data.pack import Pack
from thresher.paths import write_text
from thresher.scaling.batch_table import BatchRow
from thresher.scaling.pilot import Pilot
from thresher.scaling.pilot_runs import accuracy_curve, samples_until
from thresher.scaling.plan import PlanConfig, TrainingPlan, plan
from thresher.scaling.sample_fit import SampleFit, fit_samples
from thresher.scaling.sample_model import SampleModel
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult
from thresher.training.train import train

TUNING_SEED = 1000
RATIO_MOST = 1.25
ERROR_MOST = 0.30
REACH = 16
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "model": "tiny",
        "target": 0.93,
        "batches": "8,16,32,64,128,256,512",
        "seeds": 6,
        "pilot_batch": 16,
        "pilot_epochs": 25,
        "lr": 0.03,
        "limit": 40,
        "jobs": 2,
    },
    # ResNet-20 on CIFAR-10 takes about 40 million samples, five minutes on an H200.
    "cifar10": {
        "model": "resnet20",
        "target": 0.75,
        "batches": "32,64,128,256,512,1024,2048,4096",
        "seeds": 3,
        "pilot_batch": 32,
        "pilot_epochs": 30,
        "lr": 0.01,
        "limit": 60,
        "jobs": 8,
    },
}
"""Settings by data set; flags win."""


def samples_to_target(config: TrainConfig) -> float | None:
    """Return the samples of a run until its target; None if it did not reach it."""
    name = f"batch{config.batch_size}-lr{config.lr:.6g}-seed{config.seed}"
    result = train(replace(config, out=f"{config.out}/{name}", resume=True), quiet=True)
    assert config.target_accuracy is not None
    return samples_until(accuracy_curve(result), config.target_accuracy)


def run_all(trials: Sequence[TrainConfig], jobs: int) -> list[float | None]:
    """Return the samples to the target of every trial."""
    results = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for trial, samples in zip(trials, pool.map(samples_to_target, trials), strict=True):
            results.append(samples)
            count = "never" if samples is None else f"{samples:,.0f}"
            what = f"batch {trial.batch_size}, rate {trial.lr:.4g}, seed {trial.seed}"
            print(f"{what}: {count} samples", flush=True)
    return results


@dataclass(frozen=True)
class Sweep:
    """The options of the sweep."""

    base: TrainConfig
    batches: Sequence[int]
    factors: Sequence[float]
    seeds: int
    tuning_seeds: int
    jobs: int

    def tuned_rates(self, model: SampleModel) -> dict[int, float]:
        """Return the best rate of each batch size, by the mean log of samples on tuning seeds."""
        trials = [
            replace(self.base, batch_size=batch, lr=factor * (model.rate_at(batch) or 0), seed=seed)
            for batch in self.batches
            for factor in self.factors
            for seed in range(TUNING_SEED, TUNING_SEED + self.tuning_seeds)
        ]
        if len(self.factors) == 1:
            return {trial.batch_size: trial.lr for trial in trials}
        scores: dict[int, dict[float, float]] = {batch: {} for batch in self.batches}
        for trial, samples in zip(trials, run_all(trials, self.jobs), strict=True):
            cost = math.inf if samples is None else math.log(samples)
            by_rate = scores[trial.batch_size]
            by_rate[trial.lr] = by_rate.get(trial.lr, 0.0) + cost
        return {batch: min(rates, key=lambda lr: rates[lr]) for batch, rates in scores.items()}

    def measure(self, rates: dict[int, float]) -> dict[int, list[float | None]]:
        """Return the samples of every seed, by batch size."""
        trials = [
            replace(self.base, batch_size=batch, lr=rates[batch], seed=seed)
            for batch in self.batches
            for seed in range(self.seeds)
        ]
        measured: dict[int, list[float | None]] = {batch: [] for batch in self.batches}
        for trial, samples in zip(trials, run_all(trials, self.jobs), strict=True):
            measured[trial.batch_size].append(samples)
        return measured


@dataclass(frozen=True)
class Check:
    """The plan beside the sweep."""

    plan: TrainingPlan
    model: SampleModel
    """The plan's prediction."""
    rates: dict[int, float]
    measured: dict[int, list[float | None]]
    fit: SampleFit
    """Fitted to the sweep."""

    def mean(self, batch: int) -> float | None:
        """Return the geometric mean over seeds; None if one did not reach the target."""
        counts = [count for count in self.measured[batch] if count is not None]
        whole = len(counts) == len(self.measured[batch])
        return geometric_mean(counts) if whole else None

    @property
    def least(self) -> float:
        """The samples of the sweep's best batch size."""
        means = [self.mean(batch) for batch in self.measured]
        return min(mean for mean in means if mean is not None)

    def row(self, batch: int) -> list[str]:
        predicted, mean = self.model.estimate_at(batch), self.mean(batch)
        seeds = ["never" if n is None else f"{n:,.0f}" for n in self.measured[batch]]
        best = batch == self.plan.recommended.batch_size
        cells = [f"{batch:,}{' ←' if best else ''}", f"{self.rates[batch]:.3g}"]
        cells += [f"{predicted.value:,.0f}", f"{predicted.low:,.0f}–{predicted.high:,.0f}"]
        cells += ["not reached" if mean is None else f"{mean:,.0f}", ", ".join(seeds)]
        if mean is None:
            cells += ["–", "–", "–"]
        else:
            cells += [f"{predicted.value / mean:.2f}", f"{self.fit.samples_at(batch) / mean:.2f}"]
            cells += [f"{mean / self.least:.2f}"]
        return cells

    def marks(self) -> list[str]:
        """Return what the plan is held to, and whether it holds."""
        chosen = self.plan.recommended.batch_size
        mean = self.mean(chosen)
        ratio = math.inf if mean is None else mean / self.least
        errors = {}
        for batch in self.measured:
            value = self.mean(batch)
            if batch <= REACH * chosen and value is not None:
                errors[batch] = self.model.samples_at(batch) / value - 1
        worst = max(errors, key=lambda batch: abs(errors[batch]))
        low, high = self.plan.critical_batch_low or 0.0, self.plan.critical_batch_high or math.inf
        covered = low <= self.fit.b_crit <= high
        bounds = [
            "unknown" if x is None else f"{x:,.0f}"
            for x in (self.fit.b_crit_low, self.fit.b_crit_high)
        ]
        return [
            f"- recommended batch {chosen}: {ratio:.2f} times the samples of the sweep's best, at "
            f"most {RATIO_MOST} wanted: {_holds(ratio <= RATIO_MOST)}",
            f"- predicted samples up to {REACH} times the recommended batch: largest error "
            f"{errors[worst]:+.0%} (batch {worst:,}), at most {ERROR_MOST:.0%} wanted: "
            f"{_holds(abs(errors[worst]) <= ERROR_MOST)}",
            f"- critical batch: the plan's interval is {low:,.0f} to {high:,.0f}, the sweep fits "
            f"{self.fit.b_crit:,.0f} ({bounds[0]} to {bounds[1]}): {_holds(covered)}",
            f"- fit to the sweep: largest residual {max(map(abs, self.fit.residuals)):.0%}"
            + "".join(f"; {text}" for text in self.fit.warnings),
        ]


def pilot_rows(pilot: Pilot, target: float) -> list[BatchRow]:
    """Return the samples of each pilot that reached the target."""
    rows = []
    for folder in pilot.folders:
        result = RunResult.load(folder)
        samples = samples_until(accuracy_curve(result), target)
        if samples is not None:
            config = result.config
            rows.append(BatchRow(config.batch_size, samples, f"{target:g}", lr=config.lr))
    return rows


def write_table(path: Path, rows: Sequence[BatchRow]) -> None:
    """Write rows as CSV."""
    table = [f"{r.batch},{r.samples:.0f},{r.target},{r.lr:.6g}" for r in rows]
    write_text(path, "\n".join(["batch,samples,target,lr", *table]) + "\n")


def _holds(value: bool) -> str:
    return "holds" if value else "DOES NOT HOLD"


def _whole(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits", choices=PRESETS)
    parser.add_argument("--model")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--target", type=float)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--batches")
    parser.add_argument("--factors", default="0.5,1", help="on the plan's rate, to tune it")
    parser.add_argument("--tuning-seeds", type=int, default=3)
    parser.add_argument("--pilot-batch", type=int)
    parser.add_argument("--pilot-seeds", type=int)
    parser.add_argument("--pilot-epochs", type=float)
    parser.add_argument("--critical-batch", choices=["pilots", "branch"], default="pilots")
    parser.add_argument("--lr", type=float, help="the pilot's rate at its batch")
    parser.add_argument("--limit", type=float, help="epochs after which to give up")
    parser.add_argument("--jobs", type=int, help="trainings at once")
    parser.add_argument("--out", type=Path, default=Path("build/plan_check"))
    parser.set_defaults(**PRESETS[parser.parse_known_args()[0].data])
    args = parser.parse_args()
    result = plan(
        PlanConfig(
            data=args.data,
            model=args.model,
            cluster=args.cluster,
            target_accuracy=args.target,
            pilot_epochs=args.pilot_epochs,
            pilot_batch=args.pilot_batch,
            pilot_seeds=args.pilot_seeds,
            critical_batch=args.critical_batch,
            lr=args.lr,
            seed=100,
        )
    )
    pilot, best = result.pilot, result.recommended
    assert pilot is not None
    # The samples that the pilot saw, even if it did not reach the target.
    model = replace(pilot, reached=True).sample_model(0, pilot.train_samples)
    sweep = Sweep(
        base=TrainConfig(
            data=args.data,
            out=str(args.out / "runs"),
            model=args.model,
            epochs=args.limit,
            schedule="constant",
            validation=len(Pack.open(args.data).indices("train")) - pilot.train_samples,
            target_accuracy=args.target,
            threads=1,
        ),
        batches=sorted({*(int(b) for b in args.batches.split(",")), best.batch_size}),
        factors=[float(factor) for factor in args.factors.split(",")],
        seeds=args.seeds,
        tuning_seeds=args.tuning_seeds,
        jobs=args.jobs,
    )
    rates = sweep.tuned_rates(model)
    measured = sweep.measure(rates)
    rows = [
        BatchRow(batch, samples, f"{args.target:g}", lr=rates[batch])
        for batch, counts in measured.items()
        for samples in counts
        if samples is not None
    ]
    check = Check(result, model, rates, measured, fit_samples(rows))
    heads = (
        *("batch", "rate", "predicted", "low–high", "measured", "each seed"),
        *("predicted / measured", "fit / measured", "measured / least"),
    )
    lines = [
        f"Pilots: {pilot.runs} runs at each of the batches {pilot.batches}; critical batch "
        f"{pilot.critical_batch:.0f} (noise scale {_whole(pilot.noise_scale)}, by samples "
        f"{_whole(None if pilot.fit is None else pilot.fit.b_crit)}). "
        f"Recommended: batch {best.batch_size} on {best.workers} workers ({result.reason}).",
        "",
        *table(heads, map(check.row, sweep.batches)),
        "",
        f"Samples to the target, geometric mean of {args.seeds} seeds, interpolated between "
        f"evaluations. Rates: the best of {args.factors} times the plan's, tuned with "
        f"{args.tuning_seeds} other seeds. The predictions are those of the pilots; the fit is to "
        "the sweep itself.",
        "",
        *check.marks(),
    ]
    title = f"Plan against a sweep: {args.model} on {args.data}, to accuracy {args.target}"
    publish(page(title, lines), args.out)
    write_table(args.out / "plan_check.csv", rows)
    write_table(args.out / "pilots.csv", pilot_rows(pilot, args.target))


if __name__ == "__main__":
    main()
