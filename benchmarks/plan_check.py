"""Compare the batch that `thresher plan` recommends with a sweep, by samples to a target.

    python -m benchmarks.plan_check --data digits --target 0.85 --seeds 2
    python -m benchmarks.plan_check --data cifar10 --model resnet20 --target 0.75 \
        --pilot-batch 32 --lr 0.01 --batches 32,64,…,4096 --seeds 3 --jobs 8   (a GPU)

The pilots train at two batches for a few epochs. The sweep trains at every batch, at the plan's
rate for it, until the target, and counts the samples. The plan is good if its batch needs at most
twice the samples of the sweep's best.
"""

import argparse
import multiprocessing
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.machine import markdown
from thresher.paths import write_text
from thresher.scaling.pilot import VALIDATION
from thresher.scaling.plan import PlanConfig, plan
from thresher.training.config import TrainConfig
from thresher.training.train import train


def samples_to_target(config: TrainConfig) -> int | None:
    """Return the samples of a run until its target; None if it did not reach it."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(replace(config, out=f"{folder}/run"), quiet=True)
    return result.samples if result.status == "target" else None


def sweep(trials: list[TrainConfig], jobs: int) -> dict[int, list[int | None]]:
    """Return the samples to the target of every trial, by batch."""
    samples_by_batch: dict[int, list[int | None]] = defaultdict(list)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for trial, samples in zip(trials, pool.map(samples_to_target, trials), strict=True):
            samples_by_batch[trial.batch_size].append(samples)
            print(f"batch {trial.batch_size}, seed {trial.seed}: {samples} samples", flush=True)
    return samples_by_batch


def _whole(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--batches", default="8,16,32,64,128,256,512")
    parser.add_argument("--pilot-batch", type=int, default=16)
    parser.add_argument("--pilot-epochs", type=float, default=15)
    parser.add_argument("--lr", type=float, default=0.03, help="the pilot's rate at its batch")
    parser.add_argument("--limit", type=float, default=40, help="epochs after which to give up")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/plan_check.md"))
    args = parser.parse_args()
    result = plan(
        PlanConfig(
            data=args.data,
            model=args.model,
            cluster=args.cluster,
            target_accuracy=args.target,
            pilot_epochs=args.pilot_epochs,
            pilot_batch=args.pilot_batch,
            lr=args.lr,
            seed=100,
        )
    )
    pilot, best = result.pilot, result.recommended
    assert pilot is not None
    # The samples that the pilot saw, even if it did not reach the target.
    model = replace(pilot, reached=True).sample_model(epochs=0)
    batches = sorted({*(int(b) for b in args.batches.split(",")), best.batch_size})
    samples_by_batch = sweep(
        [
            TrainConfig(
                data=args.data,
                out="",
                model=args.model,
                batch_size=batch,
                lr=model.rate_at(batch) or args.lr,
                epochs=args.limit,
                schedule="constant",
                validation=VALIDATION,
                target_accuracy=args.target,
                seed=seed,
                threads=1,
            )
            for batch in batches
            for seed in range(args.seeds)
        ],
        args.jobs,
    )
    # A batch counts only if every seed reached the target.
    measured = {
        batch: median(count for count in counts if count is not None)
        for batch, counts in samples_by_batch.items()
        if None not in counts
    }
    least = min(measured.values())
    ratio = measured.get(best.batch_size, float("inf")) / least

    def row(batch: int) -> str:
        seeds = ", ".join("never" if n is None else f"{n:,}" for n in samples_by_batch[batch])
        cells = [f"{batch}{' ←' if batch == best.batch_size else ''}"]
        cells += [f"{model.rate_at(batch):.3g}", f"{model.samples_at(batch):,.0f}"]
        if batch in measured:
            cells += [f"{measured[batch]:,.0f}", seeds, f"{measured[batch] / least:.2f}"]
        else:
            cells += [f"not within {args.limit:g} epochs", seeds, "–"]
        return f"| {' | '.join(cells)} |"

    lines = [
        f"# Plan against a sweep: {args.model} on {args.data}, to accuracy {args.target}",
        "",
        markdown(),
        "",
        f"Pilots: batches {pilot.batch_size} and {pilot.large_batch}; critical batch "
        f"{pilot.critical_batch:.0f} (noise scale {_whole(pilot.noise_scale)}, by samples "
        f"{_whole(pilot.critical_by_samples)}). "
        f"Recommended: batch {best.batch_size} on {best.workers} workers ({result.reason}).",
        "",
        "| batch | rate | samples predicted | samples measured | each seed | measured / least |",
        "|---|---|---|---|---|---|",
        *(row(batch) for batch in batches),
        "",
        f"Median of {args.seeds} seeds. The recommended batch takes {ratio:.2f} times the samples "
        f"of the best of the sweep: {'within' if ratio <= 2 else 'NOT within'} a factor of 2.",
    ]
    write_text(args.out, "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
