"""Predicted against measured step time on a test bed of hosts with limited links.

    sudo python -m benchmarks.predict_check [--hosts 1,2,4] [--links 100mbit,1gbit]

The layers are timed on one host, the links and one step on two; everything else is predicted. Each
host is limited to the same share of a core, so that four hosts on two cores do not compete.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.calibrate import (
    CalibrationCase,
    calibrate,
    measure_links,
    measure_profile,
    measure_step,
)
from benchmarks.machine import page, table
from thresher.lab.shares import host_shares
from thresher.lab.testbed import Testbed
from thresher.paths import write_text

CASES = (CalibrationCase("alexnet-small", 32), CalibrationCase("googlenet-small", 16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--links", default="100mbit,1gbit")
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/predict_check.md"))
    args = parser.parse_args()
    hosts = [int(n) for n in args.hosts.split(",")]
    rows, errors = [], []
    with host_shares(max(hosts), args.share) as shares, Testbed(max(hosts)) as bed:
        for case in (replace(case, seconds=args.seconds) for case in CASES):
            alone = measure_profile(bed, case, shares)
            print(f"{case.model}: one host {alone.batches[0].step_s:.3f} s", flush=True)
            for link in args.links.split(","):
                bed.set_link(link)
                points = measure_links(bed, case, shares)
                two = measure_step(bed, case, 2, shares)
                predictor = calibrate(alone, points, two.step_s, shares is not None)
                for count in hosts:
                    step = measure_step(bed, case, count, shares)
                    predicted = predictor.seconds(count)
                    error = predicted / step.step_s - 1
                    errors.append(abs(error))
                    before = [f"{1e3 * seconds:.0f}" for seconds in (step.step_s, predicted)]
                    parts = (step.compute_s, step.communication_s)
                    after = [f"{100 * error:+.1f} %", *(f"{1e3 * part:.0f}" for part in parts)]
                    rows.append((case.model, link, str(count), *before, *after))
                    print(*rows[-1], flush=True)
    limit = f"each limited to {args.share:g} of a core" if shares else "sharing the cores"
    heads = ("model", "link", "hosts", "measured ms", "predicted", "error", "compute", "all-reduce")
    lines = [
        "The layers were timed on one host, the links and one step on two; the rest is predicted. "
        "The measured steps of one and two hosts are separate runs.",
        "",
        *table(heads, rows),
        "",
        f"Median error {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %: "
        f"{'all' if max(errors) <= 0.15 else 'NOT all'} within 15 %.",
    ]
    about = [f"- hosts: network namespaces, {limit}; one process and one thread each, gloo"]
    title = "Predicted against measured step time on the test bed"
    text = page(title, lines, about=about)
    write_text(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
