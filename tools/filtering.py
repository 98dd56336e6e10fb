"""Draw the figures of docs/does-filtering-help.md and write its tables, from `results/`.

`tools/claims.py` calls this. Text between `<!-- NAME -->` and `<!-- end -->` is replaced by the
table NAME.
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from scipy import stats

from thresher.report.drawing import Drawing, draw, line_style

ARMS = ("full", "random", "network", "el2n", "oracle")
SHARES = (0, 5, 20)
BATCHES = (1024, 6272)
FIGURE7 = Path("ornl-fig7", "study", "report")
AGAIN = Path("ornl-fig7-again", "report")
Accuracies = dict[tuple[float, int, str], list[float]]
"""Test accuracies of all seeds, by percent of wrong labels or weight decay, batch and arm."""


def accuracies(results: Path) -> Accuracies:
    found: Accuracies = {}
    for share in SHARES:
        report = results / "noisy-labels" / f"wrong-{share}" / "study" / "report"
        for row in pq.read_table(report / "trials.parquet").to_pylist():
            found.setdefault((share, row["batch_size"], row["arm"]), []).append(row["accuracy"])
    return found


def figures(results: Path) -> list[Drawing]:
    """Draw a figure for clean data, one for wrong labels, and two for the paper's setting."""
    values = accuracies(results)
    clean = {(0.0, batch): f"batch {batch:,}" for batch in BATCHES}
    noisy = {
        (float(share), batch): f"batch {batch:,}\n{share} % wrong"
        for share in SHARES[1:]
        for batch in BATCHES
    }
    runs = _figure7_runs(results)
    accuracy = {key: [row["accuracy"] for row in rows] for key, rows in runs.items()}
    cells = sorted({key[:2] for key in runs})
    large = {(decay, batch): f"{batch:,}\ndecay {decay}" for decay, batch in cells}
    again: Accuracies = {}
    for row in pq.read_table(results / AGAIN / "trials.parquet").to_pylist():
        again.setdefault((0.01, 10368, row["selection"]), []).append(row["accuracy"])
    largest = {(0.01, 10368): "10,368, decay 0.01, other seeds"}
    caption = "every seed, mean and its 95 % interval; 0 is the mean of full"
    return [
        draw("filtering-clean", "Clean labels", caption, _painter(values, clean), (4.8, 3.2)),
        draw("filtering-noisy", "Wrong labels", caption, _painter(values, noisy), (7.2, 3.6)),
        draw("filtering-large", "Large batches", caption, _painter(accuracy, large), (7.2, 3.6)),
        draw("filtering-again", "Largest batch", caption, _painter(again, largest), (4.8, 3.2)),
    ]


def _painter(values: Accuracies, groups: dict[tuple[float, int], str]) -> Any:
    """Return a function that draws the arms of each group, which has a name."""

    def paint(axes: Any) -> None:
        for at, group in enumerate(groups):
            arms = [arm for arm in ARMS if (*group, arm) in values]
            base = statistics.fmean(values[*group, "full"])
            for order, arm in enumerate(arms):
                points = [value - base for value in values[*group, arm]]
                x = at + 0.15 * (order - (len(arms) - 1) / 2)
                style = line_style(arm, ARMS.index(arm))
                spread = [x + 0.05 * (n / (len(points) - 1) - 0.5) for n in range(len(points))]
                axes.scatter(spread, points, s=9, color=style["color"], alpha=0.55, linewidth=0)
                mean = statistics.fmean(points)
                half = stats.sem(points) * stats.t.ppf(0.975, len(points) - 1)
                axes.errorbar(x, mean, half, capsize=3, label=arm if at == 0 else None, **style)
        axes.axhline(0, color="0.5", linewidth=0.8)
        axes.set_xticks(range(len(groups)), list(groups.values()))
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("test accuracy − full (points)")
        axes.legend(ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1), handletextpad=0.3)

    return paint


def tables(results: Path) -> dict[str, str]:
    """Return the tables of the page by name."""
    values = accuracies(results)
    lines = [
        "| wrong labels | batch | " + " | ".join(ARMS) + " |",
        "|---|---|" + "---|" * len(ARMS),
    ]
    for share in SHARES:
        for batch in BATCHES:
            cells = [values.get((share, batch, arm)) for arm in ARMS]
            means = [f"{statistics.fmean(c):.1f}" if c else "" for c in cells]
            lines.append(f"| {share} % | {batch:,} | " + " | ".join(means) + " |")
    return {
        "accuracy": "\n".join(lines),
        "verdicts": _verdicts(results),
        "found": _found(results),
        "figure 7": _figure7(results),
    }


def _verdicts(results: Path) -> str:
    lines = [
        "| wrong labels | batch | comparison | difference, corrected interval | verdict |",
        "|---|---|---|---|---|",
    ]
    for share in SHARES:
        report = results / "noisy-labels" / f"wrong-{share}" / "study" / "report" / "report.json"
        for row in json.loads(report.read_text())["verdicts"]:
            if row["primary"]:
                pair = f"{row['arm']} − {row['baseline']}"
                interval = (
                    f"{row['mean']:+.2f} ({row['adjusted_low']:+.2f} … {row['adjusted_high']:+.2f})"
                )
                at = f"{share} % | {row['cell']['batch_size']:,}"
                lines.append(f"| {at} | {pair} | {interval} | {row['word']} |")
    return "\n".join(lines)


def _figure7_runs(results: Path) -> dict[tuple[float, int, str], list[dict[str, Any]]]:
    """Return the reported runs by weight decay, batch and arm."""
    runs: dict[tuple[float, int, str], list[dict[str, Any]]] = {}
    for row in pq.read_table(results / FIGURE7 / "trials.parquet").to_pylist():
        if row["reported"]:
            runs.setdefault((row["weight_decay"], row["batch_size"], row["arm"]), []).append(row)
    return runs


def _figure7(results: Path) -> str:
    """Return accuracies, differences and amounts of training at the paper's large batches."""
    report, runs = results / FIGURE7, _figure7_runs(results)
    differences = {
        (v["arm"], v["baseline"], v["cell"].get("weight_decay"), v["cell"].get("batch_size")): v
        for v in json.loads((report / "report.json").read_text())["verdicts"]
    }
    lines = [
        "| weight decay | batch | full | random | network | network − full | network − random | "
        "samples, network / full |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for decay, batch in sorted({key[:2] for key in runs}):
        arms = {arm: runs[decay, batch, arm] for arm in ("full", "random", "network")}
        means = [f"{statistics.fmean(r['accuracy'] for r in arms[arm]):.1f}" for arm in arms]
        compared = [differences["network", other, decay, batch] for other in ("full", "random")]
        intervals = [
            f"{v['mean']:+.2f} ({v['adjusted_low']:+.2f} … {v['adjusted_high']:+.2f})"
            for v in compared
        ]
        seen = {arm: statistics.fmean(r["samples"] for r in arms[arm]) for arm in arms}
        share = f"{seen['network'] / seen['full']:.3f}"
        lines.append(f"| {decay} | {batch:,} | " + " | ".join([*means, *intervals, share]) + " |")
    return "\n".join(lines)


def _found(results: Path) -> str:
    content = json.loads((results / "noisy-labels" / "found.json").read_text())
    names = list(next(iter(content.values())))
    lines = ["| wrong labels | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for share, filters in content.items():
        cells = [f"{100 * statistics.fmean(filters[name]):.0f} %" for name in names]
        lines.append(f"| {100 * float(share):g} % | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fill(text: str, found: dict[str, str]) -> str:
    """Return the page with its tables replaced."""
    for name, table in found.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, rf"\1\n{table}\n\n\2", text, flags=re.S)
        if count != 1:
            raise SystemExit(f"the page has no place for the table {name}")
    return text
