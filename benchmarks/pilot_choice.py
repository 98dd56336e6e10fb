"""Which batch sizes should pilots have? Draws pilots from stored sweeps and holds them to others.

    python -m benchmarks.pilot_choice          (the stored CIFAR-10 sweeps, in a minute)
    python -m benchmarks.pilot_choice a.csv b.csv

Four runs of some batch sizes of one sweep stand for the pilots; the marks of `plan_check` are those
of another sweep. Prints, for each choice of pilots and each share of the critical batch that may be
recommended, how often the marks hold.
"""

import argparse
import math
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np

from benchmarks.plan_check import ERROR_MOST, RATIO_MOST, REACH
from thresher.scaling.batch_table import BatchRow, read_batch_table
from thresher.scaling.sample_fit import SampleFit, fit_samples
from thresher.scaling.sample_model import SampleModel

STORED = sorted((Path(__file__).parent / "results").glob("plan_check_cifar10*.csv"))
PILOTS = ((32, 128, 512), (32, 128, 1024), (32, 256, 2048), (32, 128, 512, 2048))
SHARES = (4, 8, 12, 16)
RUNS, DRAWS = 4, 20


@dataclass(frozen=True)
class Sweep:
    """A table of tuned runs, its means by batch size and its own fit."""

    rows: list[BatchRow]
    means: dict[int, float]
    critical: float

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        rows = read_batch_table(path)
        batches = sorted({row.batch for row in rows})
        means = {b: geometric_mean(r.samples for r in rows if r.batch == b) for b in batches}
        return cls(rows, means, fit_samples(rows).b_crit)

    def pilots(self, batches: tuple[int, ...], generator: np.random.Generator) -> SampleFit:
        """Return the fit to some runs of some batch sizes."""
        drawn = []
        for batch in batches:
            runs = [row for row in self.rows if row.batch == batch]
            drawn += [runs[n] for n in generator.choice(len(runs), RUNS, replace=False)]
        return fit_samples(drawn)

    def marks(self, fit: SampleFit, share: float) -> tuple[bool, bool, bool]:
        """Return whether samples, predictions and interval hold for a plan by that fit."""
        allowed = [batch for batch in self.means if batch <= share * fit.b_crit]
        chosen = max(allowed or [min(self.means)])
        reach = {b: mean for b, mean in self.means.items() if b <= REACH * chosen}
        at_one = fit.samples_at(1)
        model = SampleModel(fit.b_crit, at_one, 1, lr=None, train_samples=1, bends=fit.bends)
        error = max(abs(model.samples_at(b) / mean - 1) for b, mean in reach.items())
        ratio = self.means[chosen] / min(self.means.values())
        low, high = fit.b_crit_low or 0.0, fit.b_crit_high or math.inf
        return ratio <= RATIO_MOST, error <= ERROR_MOST, low <= self.critical <= high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, help="CSV files (default: the stored ones)")
    sweeps = [Sweep.read(path) for path in parser.parse_args().tables or STORED]
    print(f"{len(sweeps)} sweeps fit", ", ".join(f"{sweep.critical:,.0f}" for sweep in sweeps))
    print("\n| pilots | critical batch | share | samples | predictions | interval | all |")
    print("|---|---|---|---|---|---|---|")
    for batches in PILOTS:
        generator = np.random.default_rng(0)
        plans = [
            (there, here.pilots(batches, generator))
            for here, there in permutations(sweeps, 2)
            for _ in range(DRAWS)
        ]
        critical = median(fit.b_crit for _, fit in plans)
        for share in SHARES:
            held = np.array([sweep.marks(fit, 1 / share) for sweep, fit in plans])
            shown = [*held.mean(0), held.all(1).mean()]
            cells = [", ".join(map(str, batches)), f"{critical:,.0f}", f"1/{share}"]
            print(f"| {' | '.join([*cells, *(f'{x:.0%}' for x in shown)])} |", flush=True)


if __name__ == "__main__":
    main()
