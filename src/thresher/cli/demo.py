"""`thresher demo`: the whole story on the data set that ships with scikit-learn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack

BATCHES = [64, 256, 1024]
DROP = 0.06


@dataclass(frozen=True)
class Demo:
    out: Path = Path("demo")
    """Folder for everything that the demo makes; called again, it goes on where it was."""


def demo(config: Demo) -> Outcome:
    """Train an extractor on handwritten digits, map its features, drop the map's noise, retrain on
    full, randomly filtered and network-filtered data at three batch sizes with three seeds, and
    say with error bars whether it helped. Minutes on two cores, no network needed.
    """
    from thresher.progress import say
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.study import Study

    ensure_pack("digits")
    study = Study.make(_story(), config.out)
    say("digits: 1,437 training images of 8×8; a tiny network learns them, and maps them")
    say("then 27 runs: full / random / network × batches 64, 256, 1,024 × three seeds")
    study.run()
    analysis = analyse(study)
    page = write_report(analysis)
    found = analysis.to_dict()
    overall = [v for v in found["verdicts"] if not v["cell"]]
    selection = _selection(study)
    data = {
        "out": str(config.out),
        "report": str(page),
        "selection": str(selection),
        "verdicts": found["verdicts"],
        "cells": found["cells"],
        "complete": found["complete"],
    }
    return Outcome(data, _ending(overall, found["cells"], page, selection))


def _story() -> dict[str, Any]:
    """The study: what `examples/*.toml` hold, as a dictionary."""
    from thresher.recipes.studies import SMOKE, pipeline

    base = {**SMOKE, "epochs": 8}
    return {
        "title": "Does dropping the map's noise help on digits?",
        "seeds": 3,
        "compare": "selection",
        "base": base,
        "grid": {"batch_size": BATCHES, "selection": ["full", "random", "network"]},
        "steps": pipeline({**base, "batch_size": 64}, {"drop": DROP}),
        "executor": {"kind": "local", "workers": 2},
    }


def _selection(study: Any) -> Path:
    return Path(study.output("network"))


def _ending(
    overall: list[dict[str, Any]], cells: list[dict[str, Any]], page: Path, selection: Path
) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table("batch", "full", "random", "network", title="test accuracy, mean of three seeds")
    for batch in BATCHES:
        means = {c["selection"]: c["mean"] for c in cells if c["batch_size"] == batch}
        table.add_row(
            f"{batch:,}", *(f"{means[arm]:.1f} %" for arm in ("full", "random", "network"))
        )
    sentences = "\n".join(f"• {verdict['sentence']}" for verdict in overall)
    after = f"""
The report, with every figure:  {page}
The map, with every image:      thresher view {selection}

With your own images, one folder per class:

  thresher data pack PICTURES mine
  thresher train --data mine --model resnet18 --image-size 224 --out extractor
  thresher select network --data mine --run extractor --drop 0.05 --out keep.parquet
  thresher view keep.parquet
  thresher train --data mine --model resnet18 --image-size 224 --selection keep.parquet --out kept
"""
    return Group(table, "", sentences, after)
