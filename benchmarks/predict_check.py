"""Predicted against measured step time on a test bed of hosts with limited links.

    sudo python -m benchmarks.predict_check [--hosts 1,2,4] [--links 100mbit,1gbit]

Profile: the layers on one host; the links and one step on two. Everything else is predicted. Each
host is held to the same share of a core, so that four hosts on two cores do not contend.
"""

import argparse
from pathlib import Path
from statistics import median

from benchmarks.machine import markdown
from thresher.lab.calibrate import Case, calibrate, run_case
from thresher.lab.shares import host_shares
from thresher.lab.testbed import Testbed
from thresher.paths import write_text
from thresher.progress import say

CASES = (Case("alexnet-small", 32), Case("googlenet-small", 16))


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
    with host_shares(max(hosts), args.share) as groups, Testbed(max(hosts)) as bed:
        for case in (Case(c.model, c.batch, seconds=args.seconds) for c in CASES):
            alone = run_case(bed, case, 1, groups, "profile")
            say(f"{case.model}: one host {alone['times']['step_s']:.3f} s")
            for link in args.links.split(","):
                bed.set_link(link)
                points = run_case(bed, case, 2, groups, "links")["points"]
                pair = run_case(bed, case, 2, groups, "step")
                predictor = calibrate(case, alone, points, pair["step_s"], groups is not None)
                for count in hosts:
                    found = run_case(bed, case, count, groups, "step")
                    predicted = predictor.seconds(count)
                    error = predicted / found["step_s"] - 1
                    errors.append(abs(error))
                    rows.append(
                        f"| {case.model} | {link} | {count} | {1e3 * found['step_s']:.0f} | "
                        f"{1e3 * predicted:.0f} | {100 * error:+.1f} % | "
                        f"{1e3 * found['compute_s']:.0f} | {1e3 * found['communication_s']:.0f} |"
                    )
                    say(rows[-1])
    held = f"each held to {args.share:g} of a core" if groups else "sharing the cores without limit"
    lines = [
        "# Predicted against measured step time on the test bed",
        "",
        markdown(),
        f"- hosts: network namespaces, {held}; one process and one thread each, gloo",
        "",
        "The layers were timed on one host, the links and one step on two; the rest is predicted. "
        "The measured steps of one and two hosts are runs of their own.",
        "",
        "| model | link | hosts | measured ms | predicted | error | compute | all-reduce |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Median error {100 * median(errors):.1f} %, largest {100 * max(errors):.1f} %: "
        f"{'all' if max(errors) <= 0.15 else 'NOT all'} within 15 %.",
    ]
    write_text(args.out, "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
