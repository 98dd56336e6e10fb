"""Is the batch that `thresher plan` recommends a good one? Against a real sweep, by samples.

    python benchmarks/plan_check.py [--data digits] [--target 0.85] [--seeds 2]

The pilots see two batches for a few epochs. The sweep then trains at every batch, at the rate that
the plan gives it, until the target, and counts the samples. The plan is good if its batch needs at
most twice the samples of the sweep's best.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from machine import markdown

from thresher.cli.plan import Plan, plan
from thresher.paths import write_text
from thresher.progress import say
from thresher.scaling.plan import Statistics
from thresher.train.config import TrainConfig
from thresher.train.loop import train

LIMIT_EPOCHS = 40


def samples_to_target(
    data: str, model: str, batch: int, lr: float, target: float, seed: int
) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        result = train(
            TrainConfig(
                data=data,
                out=f"{folder}/run",
                model=model,
                batch_size=batch,
                lr=lr,
                epochs=LIMIT_EPOCHS,
                schedule="constant",
                validation=0.15,
                target_accuracy=target,
                seed=seed,
                threads=1,
            ),
            quiet=True,
        )
    return int(result["samples"]) if result["status"] == "target" else None


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
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/plan_check.md"))
    args = parser.parse_args()
    answer = plan(
        Plan(
            args.data,
            args.model,
            args.cluster,
            target_accuracy=args.target,
            pilot_epochs=15,
            seed=100,
        )
    ).data
    pilot, best = answer["pilot"], answer["recommended"]
    stats = Statistics(
        pilot.critical_batch, pilot.samples, pilot.batch_size, pilot.lr, pilot.train_samples
    )
    wanted = sorted({*(int(b) for b in args.batches.split(",")), best["batch_size"]})
    measured: dict[int, float] = {}
    for batch in wanted:
        found = [
            samples_to_target(args.data, args.model, batch, stats.rate_at(batch), args.target, s)
            for s in range(args.seeds)
        ]
        reached = [count for count in found if count is not None]
        say(f"batch {batch}: {found}")
        if len(reached) == len(found):
            measured[batch] = median(reached)
    least = min(measured.values())
    ratio = measured.get(best["batch_size"], float("inf")) / least
    lines = [
        f"# Plan against a sweep: {args.model} on {args.data}, to accuracy {args.target}",
        "",
        markdown(),
        "",
        f"Pilots: batches {pilot.batch_size} and {pilot.large_batch}; critical batch "
        f"{pilot.critical_batch:.0f} (noise scale {_whole(pilot.noise_scale)}, by samples "
        f"{_whole(pilot.critical_by_samples)}). "
        f"Recommended: batch {best['batch_size']} on {best['workers']} workers "
        f"({best['reason']}).",
        "",
        "| batch | rate | samples predicted | samples measured | measured / least |",
        "|---|---|---|---|---|",
        *(
            f"| {batch}{' ←' if batch == best['batch_size'] else ''} | {stats.rate_at(batch):.3g} "
            f"| {stats.samples_at(batch):,.0f} | "
            + (
                f"{measured[batch]:,.0f} | {measured[batch] / least:.2f} |"
                if batch in measured
                else f"not within {LIMIT_EPOCHS} epochs | – |"
            )
            for batch in wanted
        ),
        "",
        f"Median of {args.seeds} seeds. The recommended batch takes {ratio:.2f} times the samples "
        f"of the best of the sweep: {'within' if ratio <= 2 else 'NOT within'} a factor of 2.",
    ]
    write_text(args.out, "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
