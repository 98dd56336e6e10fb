"""Measure how much E(B) = E_min(1 + B/B_crit) misses a batch size, beyond the scatter of repeats.

    python -m benchmarks.form_error            (the stored tables, in seconds)
    python -m benchmarks.form_error runs.csv

Prints one line for each target with enough batch sizes, and the root mean square of all.
"""

import argparse
import math
from pathlib import Path
from statistics import fmean, median

from thresher.scaling.batch_table import BatchRow, read_batch_table
from thresher.scaling.sample_fit import ENOUGH, fit_samples, form_error

ROOT = Path(__file__).parents[1]
STORED = ("tests/scaling/mlperf.csv", "benchmarks/results/plan_check*.csv")
"""Tables whose rates were tuned for each batch size."""


def tables(path: Path) -> dict[str, list[BatchRow]]:
    """Return the rows of each target that has enough batch sizes to estimate τ."""
    targets: dict[str, list[BatchRow]] = {}
    for row in read_batch_table(path):
        targets.setdefault(row.target, []).append(row)
    return {t: rows for t, rows in targets.items() if len({r.batch for r in rows}) >= ENOUGH}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, help="CSV files (default: the stored ones)")
    stored = [path for pattern in STORED for path in sorted(ROOT.glob(pattern))]
    errors = []
    print("| table | target | batch sizes | runs | largest residual | τ |")
    print("|---|---|---|---|---|---|")
    for path in parser.parse_args().tables or stored:
        for target, rows in tables(path).items():
            fit, error = fit_samples(rows), form_error(rows)
            errors.append(error)
            runs = sum(point.runs for point in fit.points)
            bound = "" if len(rows) > len(fit.points) else " (upper bound: no repeats)"
            cells = [path.stem, target, str(len(fit.points)), f"{runs:.0f}"]
            cells += [f"{max(map(abs, fit.residuals)):.0%}", f"{error:.3f}{bound}"]
            print(f"| {' | '.join(cells)} |")
    if errors:
        square = math.sqrt(fmean(error**2 for error in errors))
        count = len(errors)
        print(f"\n{count} tables: root mean square {square:.3f}, median {median(errors):.3f}")


if __name__ == "__main__":
    main()
