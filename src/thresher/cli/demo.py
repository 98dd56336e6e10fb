"""`thresher demo`: run the full pipeline on the bundled digits data set."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack

if TYPE_CHECKING:
    from thresher.study.analysis import Analysis
    from thresher.study.tasks import Values

BATCHES = [64, 256, 1024]
DROP = 0.06
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path = Path("demo")
    """Folder for all output; an interrupted demo resumes."""


def demo(config: Demo) -> Outcome:
    """Run the full pipeline on handwritten digits: train a network, compute a map of its features,
    drop outliers on the map, train on full, randomly filtered and network-filtered data at three
    batch sizes with three seeds, and report with error bars whether filtering helped. Takes minutes
    on two cores and needs no internet connection.
    """
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.study import Study

    ensure_pack("digits")
    study = Study.from_dict(_definition(), config.out)
    logger.info("digits: training a small network on 1,437 images of 8×8, and mapping them")
    logger.info("then 27 runs: full, random, network × batches 64, 256, 1,024 × three seeds")
    study.run()
    analysis = analyse(study)
    page = write_report(analysis)
    selection = Path(study.output("network"))
    report = analysis.to_dict()
    data = {
        "out": str(config.out),
        "report": str(page),
        "selection": str(selection),
        **{key: report[key] for key in ("verdicts", "cells", "complete")},
    }
    return Outcome(data, _text(analysis, page, selection))


def _definition() -> "Values":
    """Return the study, as a file of `examples/` would define it."""
    from thresher.recipes.support.studies import SMOKE, pipeline

    base = {**SMOKE, "epochs": 8}
    return {
        "title": "Does dropping outliers of the map help on digits?",
        "seeds": 3,
        "compare": "selection",
        "base": base,
        "grid": {"batch_size": BATCHES, "selection": ["full", "random", "network"]},
        "steps": pipeline({**base, "batch_size": 64}, DROP),
        "executor": {"kind": "local", "workers": 2},
    }


def _text(analysis: "Analysis", page: Path, selection: Path) -> Any:
    from rich.console import Group
    from rich.table import Table

    table = Table("batch", "full", "random", "network", title="test accuracy, mean of three seeds")
    for batch in BATCHES:
        cells = [c for c in analysis.cells if c.cell["batch_size"] == batch]
        means = {c.cell["selection"]: c.mean for c in cells}
        table.add_row(
            f"{batch:,}", *(f"{means[arm]:.1f} %" for arm in ("full", "random", "network"))
        )
    sentences = "\n".join(f"• {verdict.sentence}" for verdict in analysis.overall)
    after = f"""
Report with all figures:  {page}
Map with all images:      thresher view {selection}

To use your own images, one folder per class:

  thresher data pack PICTURES mine
  thresher train --data mine --model resnet18 --image-size 224 --out extractor
  thresher select network --data mine --run extractor --drop 0.05 --out keep.parquet
  thresher view keep.parquet
  thresher train --data mine --model resnet18 --image-size 224 --selection keep.parquet --out kept
"""
    return Group(table, "", sentences, after)
