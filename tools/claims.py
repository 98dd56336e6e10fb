"""Collect the results of recipes in `results/`, and write `docs/claims.md` from them.

The figures and tables of `docs/does-filtering-help.md` are written as well.

    python tools/claims.py                   write the page and the stored verdicts
    python tools/claims.py --store RUN …     first copy finished recipes to results/NAME

RUN is the folder of `thresher reproduce NAME --preset gpu --out RUN`. Its rows, trials, analysis
and figures are copied; the runs themselves are not. `results/NAME/remarks.txt`, which people write,
stays; read it again, since it may be about the earlier run.
"""

import argparse
import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from thresher.paths import write_json
from thresher.recipes import VERDICTS
from thresher.version import __version__

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "claims.md"
FILTERING = ROOT / "docs" / "does-filtering-help.md"
COPIED = ("trials.parquet", "report.json", "found.json", "reached.json", "*.svg")
REMARKS = "remarks.txt"
"""What we saw after the run, a sentence per line."""
HEAD = """# Claims

What five papers and talks claim, and what we measured:

- **O**: Gahlot, Yin and Shankar (2020), Data optimization for large batch distributed training of
  deep neural networks
- **M**: McCord and Dash (2021), Increasing mini-batch size while preserving accuracy for
  distributed learning
- **S**: Cunha, Rodrigues, Viana and Borges (2018), An argument in favor of strong scaling for deep
  neural networks with small datasets (slides)
- **K**: Keuper, Distributed training of deep neural networks: theoretical and practical limits of
  parallel scalability (slides)
- **J**: Jitsev (2021), Towards scalable deep learning: distributed training with large data and
  scaling (slides)

`thresher reproduce` lists the recipes that test them; `thresher reproduce mccord-linear --preset
smoke` runs one in minutes on a laptop. This page is generated from `results/` by `make claims`;
every number is in a stored row. A claim holds if its comparison says so after correction for the
number of comparisons ([Studies](studies.md)); "not enough runs" is neither yes nor no. Intervals
are corrected in the same way: that of a difference contains 0 unless the difference is significant.
A "no" may also mean that the published effect is excluded. That test is one-sided and has a
correction of its own, so the published effect can lie just inside the interval. Accuracies are
"equal" if they are shown to differ by less than 0.3 points, which is more than overlapping error
bars. Intervals "over 4 seeds" are the lowest and highest seed. Rows that say "predicted" compare a
model with published numbers, and nothing was measured; J4 holds if they agree within 30 %, and
partly within a factor of two.

What "Differs from the paper in" does not name is as in the paper or, if the paper does not give it,
Thresher's default: SGD with momentum 0.9, weight decay 0.0005, cosine decay. The lists of older
runs leave out two differences from O: on one worker, "local" batch norm is over the whole batch
instead of an eighth of it, and the network filter uses our t-SNE and the eps that drops the share
that is given, instead of scikit-learn's defaults of 2020 and eps 0.5.

Other measurements of these claims are not counted: on four hosts with links of 1 Gbit/s strong
scaling was never first, against S1 ([rules_hosts](../benchmarks/results/rules_hosts.md)); on two
cores DDP was faster than Horovod, as O5 says ([engines](../benchmarks/results/engines.md)); an
earlier grid of figure 7 shows no gain
([ornl-fig7-h200](../benchmarks/results/ornl-fig7-h200/README.md)).

## In short

| claim | what is claimed | holds in so many comparisons | run |
|---|---|---|---|
"""
EVERY = """
## Every comparison

| claim | the paper says | we measured | interval | holds? | run |
|---|---|---|---|---|---|
"""
OURS = "our question: "
"""What the `paper` of a row begins with that no paper asks."""
WORDS = ("yes", "partly", "no", "not enough runs")


class Claim(NamedTuple):
    """A claim of one of the papers."""

    id: str
    text: str
    guide: str = ""
    """The page that describes it, for what is a feature and not a measurement."""


CLAIMS = (
    Claim("O1", "Table I: the share of CIFAR-10 that is noise on each extractor's map"),
    Claim("O2", "For each learning rate there is a preferred batch size"),
    Claim("O3", "Figure 6: network-filtered data at small batches, weight decay tuned"),
    Claim("O4", "Figure 7: network-filtered data at large batches"),
    Claim("O5", "DDP scales better than Horovod up to 1,536 GPUs"),
    Claim("O6", "An interactive view of the map to oversee the filter", "page.md"),
    Claim("O7", "The filter also works with a pretrained extractor"),
    Claim("O8", "Future work: recursive filtering, grid sampling, other networks"),
    Claim("M1", "Accuracy falls as the batch grows"),
    Claim("M2", "No warm-up is worst; larger batches want a longer one"),
    Claim("M3", "Linear scaling against none at the largest batch: no difference"),
    Claim("M4", "B = s·k and I = T/(s·k), the scaling ratio", "scaling.md"),
    Claim("M5", "Ring, hierarchical and hybrid all-reduce", "communication.md"),
    Claim("M6", "LEGW, LARS, polynomial decay, mixed precision, label smoothing", "training.md"),
    Claim("S1", "Strong scaling reaches a given loss sooner than weak scaling"),
    Claim("S2", "Strong scaling takes the same path as one worker"),
    Claim("S3", "The yardstick is the time to a given loss"),
    Claim("K1", "Communication bounds data-parallel SGD"),
    Claim("K2", "Even without communication the speed-up ends: small matrix products"),
    Claim("K3", "A batch of b ends at b workers"),
    Claim("K4", "Lower precision, sparse updates, compression, asynchrony", "communication.md"),
    Claim("K5", "Many small files read at random are slow; one binary cures it"),
    Claim("J1", "Few large containers, read ahead", "data.md"),
    Claim("J2", "Ideally, K workers have K times the throughput of one"),
    Claim("J3", "Large batches may need other hyper-parameters, chosen on validation"),
    Claim("J4", "The records of ResNet-50 on ImageNet"),
)


def store(run: Path) -> str:
    """Copy what a reader needs of a finished recipe to results/NAME; return the name."""
    content = json.loads((run / "recipe.json").read_text())
    if "made" not in content:
        raise SystemExit(f"{run} was made by an older version: run it again")
    target = RESULTS / content["name"]
    for old in target.iterdir() if target.is_dir() else ():
        if old.is_dir():
            shutil.rmtree(old)
        elif old.name != REMARKS:
            old.unlink()
    content["made"]["hardware"].pop("host", None)
    if any(run.rglob("trials.parquet")):  # otherwise nothing else holds the single runs
        del content["data"]
    write_json(target / "recipe.json", content)
    for pattern in COPIED:
        for file in sorted(run.rglob(pattern)):
            inside = file.relative_to(run)
            if "trials" in inside.parts[:-1] or "steps" in inside.parts[:-1]:
                continue  # the folders of single runs
            if file.name.startswith("map-"):
                continue  # half a megabyte each
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target / inside)
    return str(content["name"])


@dataclass(frozen=True)
class StoredResult:
    """A recipe's result in `results/`."""

    preset: str
    command: str
    commit: str | None
    hardware: dict[str, str | int]
    versions: dict[str, str]
    rows: list[dict[str, object]]
    """Those of `recipe.json`."""


def collect(results: Path = RESULTS) -> dict[str, StoredResult]:
    """Return the stored results by recipe."""
    found = {}
    for file in sorted(results.glob("*/recipe.json")):
        content = json.loads(file.read_text())
        found[content["name"]] = StoredResult(
            preset=content["preset"], **content["made"], rows=content["rows"]
        )
    return found


def verdicts(results: dict[str, StoredResult]) -> dict[str, dict[str, int]]:
    """Count the verdicts of each result."""
    return {n: dict(Counter(str(row["holds"]) for row in r.rows)) for n, r in results.items()}


Row = tuple[str, dict[str, object]]
"""The recipe, and a row of its result."""


def page(results: dict[str, StoredResult]) -> str:
    """Return the page."""
    short: list[list[str]] = []
    lines: list[list[object]] = []
    for claim in CLAIMS:
        rows = [
            (name, row)
            for name, result in results.items()
            for row in result.rows
            if claim.id in _ids(str(row["claim"]))
        ]
        short += _in_short(claim, rows)
        if claim.guide:
            lines.append([claim.id, claim.text, f"a feature: [guide]({claim.guide})", "", "", ""])
        elif not rows:
            lines.append([claim.id, claim.text, "not run", "", "", ""])
        for name, row in rows:
            run = f"[{name}](#{name})" + (", with a note" if _remarks(name) else "")
            values = [row["paper"], row["measured"], row["interval"], row["holds"], run]
            lines.append([claim.id, *values])
    sections = "".join(_section(name, results[name]) for name in sorted(results))
    return HEAD + _table(short) + EVERY + _table(lines) + sections


def _in_short(claim: Claim, rows: Sequence[Row]) -> list[list[str]]:
    """Return a line of the table on top for the claim, and one for what we asked beyond it."""
    if claim.guide:
        counts, runs = _counts(rows) if rows else ["", ""]
        feature = f"a feature: [guide]({claim.guide})" + (f"; {counts}" if counts else "")
        return [[claim.id, claim.text, feature, runs]]
    ours = [one for one in rows if str(one[1]["paper"]).startswith(OURS)]
    theirs = [one for one in rows if one not in ours]
    lines = [[claim.id, claim.text, *_counts(theirs)]]
    if ours:
        lines.append([claim.id, "Our own questions about it", *_counts(ours)])
    return lines


def _counts(rows: Sequence[Row]) -> list[str]:
    """Return the number of each verdict, and links to the recipes."""
    count = Counter(str(row["holds"]) for _, row in rows)
    runs = dict.fromkeys(f"[{name}](#{name})" for name, _ in rows)
    words = ", ".join(f"{word} {count[word]}" for word in WORDS if count[word])
    predicted = sum("predicted" in str(row["measured"]) for _, row in rows)
    words += f" ({predicted} predicted)" if predicted else ""
    return [words or "not run", ", ".join(runs)]


def _table(lines: Sequence[Sequence[object]]) -> str:
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _remarks(name: str) -> list[str]:
    """Return what limits the verdicts: notes of the reports, and what we saw after the runs."""
    reports = sorted((RESULTS / name).rglob("report.json"))
    notes = [note for report in reports for note in json.loads(report.read_text())["notes"]]
    seen = RESULTS / name / REMARKS
    return list(dict.fromkeys(notes + (seen.read_text().splitlines() if seen.exists() else [])))


def _section(name: str, result: StoredResult) -> str:
    hardware = ", ".join(f"{key} {value}" for key, value in result.hardware.items())
    versions = ", ".join(f"{key} {value}" for key, value in result.versions.items())
    differs = sorted({str(row["differs"]) for row in result.rows if row.get("differs")})
    notes = [f"- *{row['paper']}*: {row['note']}" for row in result.rows if row.get("note")]
    parts = [
        f"\n## {name}\n",
        f"`{result.command}`, commit {result.commit or 'unknown'}.\n",
        f"{hardware}; {versions}.\n",
        *(f"Differs from the paper in: {text}.\n" for text in differs),
        *(f"**Note**: {text}\n" for text in _remarks(name)),
        *(["\n".join(notes) + "\n"] if notes else []),
    ]
    return "\n".join(parts)


def _ids(text: str) -> list[str]:
    """Return the claims that a row names: `S1`, or `S1–S3`."""
    begin, _, end = text.partition("–")
    if not end:
        return re.findall(r"[A-Z]\d+", text)
    return [f"{begin[0]}{n}" for n in range(int(begin[1:]), int(end[1:]) + 1)]


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def write_filtering() -> None:
    """Write the figures and tables of docs/does-filtering-help.md."""
    import filtering  # beside this file

    for figure in filtering.figures(RESULTS):
        (ROOT / "docs" / "images" / f"{figure.name}.png").write_bytes(figure.png)
    text = FILTERING.read_text()
    FILTERING.write_text(filtering.fill(text, filtering.tables(RESULTS)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", nargs="+", type=Path, default=[], metavar="RUN")
    for run in parser.parse_args(arguments).store:
        name = store(run)
        kept = (RESULTS / name / REMARKS).exists()
        print(f"stored {name}" + (f"; its {REMARKS} is of an earlier run" if kept else ""))
    results = collect()
    VERDICTS.write_text(json.dumps(verdicts(results), indent=1) + "\n")
    PAGE.write_text(page(results))
    write_filtering()
    print(f"{PAGE.relative_to(ROOT)}: {len(results)} recipes (Thresher {__version__})")


if __name__ == "__main__":
    main()
