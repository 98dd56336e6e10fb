"""`thresher demo`: plant wrong labels in the digits data, find them, and train without them."""

import logging
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.study.analysis import Analysis
    from thresher.study.tasks import Values

SHARE, SEEDS, EPOCHS = 0.15, 4, 20
ARMS = {
    "full": "all images, wrong labels included",
    "random": "without as many at random",
    "network": "without what the filter flags",
}
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Demo:
    out: Path = Path("demo")
    """Folder for all output; an interrupted demo resumes."""


@dataclass(frozen=True)
class Found:
    """How well the filter found the labels that were changed."""

    changed: int
    dropped: int
    hits: int
    """Changed labels among the dropped images."""
    precision: float
    recall: float
    figure: str


def demo(config: Demo) -> Outcome:
    """Find wrong labels in handwritten digits, and train without them.

    15 % of the labels are changed on purpose. The filter looks for them; then networks are trained
    on all images, on fewer at random, and on those that the filter keeps, with four seeds each.
    Takes minutes on two cores and needs no internet connection.
    """
    from thresher.data.flip import FlipOptions, flip_labels
    from thresher.data.pack import Pack
    from thresher.recipes.support.studies import run_whole
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.study import Study

    ensure_pack("digits")
    original = Pack.open("digits")
    pack = flip_labels(original, config.out / "digits-with-errors", FlipOptions(share=SHARE))
    logger.info(
        "digits: %d training images of 8×8; %.0f %% of their labels are changed on purpose",
        len(pack.indices("train")),
        100 * SHARE,
    )
    logger.info("for each of 4 seeds: a network, a map of its features, a filter; then 3 runs")
    study = Study.from_dict(_definition(pack), config.out / "study")
    remarks = logging.getLogger("thresher.study.driver")
    before = remarks.level
    remarks.setLevel(logging.ERROR)  # that a share was missed by a sample, say, is no help here
    try:
        run_whole(study)
    finally:
        remarks.setLevel(before)
    selection = Path(study.output("network", seed=0))
    found = _found(original, pack, selection, config.out / "found.png")
    analysis = analyse(study)
    page = write_report(analysis)
    report = analysis.to_dict()
    data = {
        "out": str(config.out),
        "found": found,
        "report": str(page),
        "selection": str(selection),
        **{key: report[key] for key in ("verdicts", "cells", "complete")},
    }
    return Outcome(data, _text(found, analysis, page, selection))


def _definition(pack: "Pack") -> "Values":
    from thresher.recipes.support.studies import pipeline

    base: Values = {
        "data": str(pack.root),
        "model": "tiny",
        "epochs": EPOCHS,
        "batch_size": 64,
        "lr": 0.1,
        "warmup_epochs": 2,
        "flip": False,
        "crop_padding": 0,
        "evaluate_every": 0,
    }
    return {
        "title": "Does dropping flagged images help when some labels are wrong?",
        "seeds": SEEDS,
        "compare": "selection",
        "primary": ["network - full", "network - random"],
        "base": base,
        "grid": {"selection": list(ARMS)},
        # Few epochs with shifted images: the network has not memorised the wrong labels yet.
        "steps": pipeline({"epochs": 4, "crop_padding": 1}, SHARE),
        "executor": {"kind": "local", "workers": 2},
    }


def _found(original: "Pack", pack: "Pack", selection: Path, figure: Path) -> Found:
    """Compare what the filter dropped with the labels that were changed, and draw some of both."""
    import numpy as np

    from thresher.data.selection import Selection
    from thresher.report.found_figure import found_figure

    true = original.labels[original.positions(pack.ids)]
    train = pack.indices("train")
    changed = train[pack.labels[train] != true[train]]
    kept = Selection.load(selection).indices(pack)
    dropped = np.setdiff1d(train, kept)
    hits = np.intersect1d(dropped, changed)
    rows: dict[str, np.ndarray] = {
        f"wrong label, dropped ({len(hits)} of {len(changed)})": hits,
        f"wrong label, missed ({len(changed) - len(hits)})": np.intersect1d(kept, changed),
        f"right label, dropped ({len(dropped) - len(hits)})": np.setdiff1d(dropped, changed),
    }
    found_figure(pack, true, rows, figure)
    return Found(
        len(changed),
        len(dropped),
        len(hits),
        precision=len(hits) / max(1, len(dropped)),
        recall=len(hits) / max(1, len(changed)),
        figure=str(figure),
    )


def _text(found: Found, analysis: "Analysis", page: Path, selection: Path) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from thresher.report.tables import shown_interval

    table = Table("training data", box=None)
    for name in ("images", "test accuracy", "95 % interval"):
        table.add_column(name, justify="right")
    for cell in analysis.cells:
        arm = cell.cell["selection"]
        low, high = shown_interval(cell, analysis.metric)
        table.add_row(
            f"{arm}: {ARMS[arm]}",
            f"{cell.train_samples:,.0f}",
            f"{cell.mean:.1f} %",
            f"{low:.1f} … {high:.1f}",
        )
    first = (
        f"Of {found.changed} wrong labels the filter found {found.hits}. It dropped "
        f"{found.dropped} images: {100 * found.precision:.0f} % of them had a wrong label.\n"
        f"Right and wrong ones side by side: {found.figure}\n"
    )
    sentences = "\n".join(
        f"• {verdict.sentence}" for verdict in analysis.verdicts if verdict.arm == "network"
    )
    command = thresher_command()
    after = f"""Report with all figures: {page}
Look at the map with every image: {command} view {selection}
Check your own images, in one folder per class: {command} audit FOLDER --out AUDIT"""
    return Group(first, table, "", sentences, "", Text(after, no_wrap=True))


def thresher_command() -> str:
    """Return how the command can be typed in this folder: `thresher`, or its path."""
    script = Path(sys.executable).parent / "thresher"
    on_path = shutil.which("thresher")
    # The script of a user's installation is not beside Python.
    if on_path is not None and Path(on_path).resolve() in (script.resolve(), Path(sys.argv[0])):
        return "thresher"
    if not script.exists():
        return f"{sys.executable} -m thresher"
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)
