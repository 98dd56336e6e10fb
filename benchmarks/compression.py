"""Time saved by gradient compression on a slow network: a step of alexnet-small (17 MB of
gradients) on two hosts of the test bed, against the same step without compression.

    python -m benchmarks.compression [--link 100mbit] [--hosts 2]     (needs root)

Writes benchmarks/results/compression.json and .md.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import describe, table
from thresher.distributed.names import Compress
from thresher.lab.engines import EngineComparisonConfig, compare_engines
from thresher.paths import write_json, write_text

KINDS: tuple[Compress, ...] = ("none", "fp16", "bf16", "int8", "topk", "powersgd")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for compress in KINDS:
        config = EngineComparisonConfig(
            engines=("ddp",),
            workers=(args.hosts,),
            hosts=args.hosts,
            link=args.link,
            batch_size=8,
            compress=(compress,),
            bucket_mb=(5.0,),
            steps=args.steps,
        )
        (row,) = compare_engines(config).rows
        values = asdict(row)
        del values["spans"]
        rows.append({"compress": compress, **values})
    plain = rows[0]["step_s"]
    for values in rows:
        values["ratio"] = values["step_s"] / plain
    about = {
        **describe(),
        "load_average": f"{os.getloadavg()[0]:.1f} (the hosts share the cores)",
        "link": args.link,
        "hosts": str(args.hosts),
    }
    cells = []
    for values in rows:
        times = [f"{1e3 * values[key]:,.0f}" for key in ("step_s", "compute_s")]
        cells.append((values["compress"], *times, f"{values['ratio']:.2f}"))
    folder = Path(__file__).parent / "results"
    write_json(folder / "compression.json", {**about, "rows": rows})
    lines = [
        f"# A step of alexnet-small on {args.hosts} hosts, links of {args.link}",
        "",
        *(f"- {key}: {value}" for key, value in about.items()),
        "",
        *table(("compress", "step, ms", "computation, ms", "ratio to none"), cells),
        "",
        "The step includes computation on cores that the hosts share, which varies on a busy "
        "machine; the time on the link does not.",
    ]
    write_text(folder / "compression.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
