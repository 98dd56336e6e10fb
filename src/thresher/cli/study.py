"""`thresher study …`: many runs, and a verdict with error bars."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_packs_of_study
from thresher.errors import ThresherError

if TYPE_CHECKING:
    from thresher.study.analysis import Analysis
    from thresher.study.folder import StudyStatus

REFRESH_S = 2.0


@dataclass(frozen=True)
class Run:
    file: Annotated[Path, tyro.conf.Positional]
    """The study: a TOML file (examples/ has some to start from)."""
    out: Path
    """The study's folder; what is finished there is skipped, what was stopped goes on."""
    retry: bool = False
    """Try again what failed in an earlier run."""
    executor: Literal["in-process", "local", "slurm"] | None = None
    """Where to run, instead of what the file says."""
    workers: int | None = None
    """Trials at once on this machine, instead of what the file says."""


@dataclass(frozen=True)
class Status:
    folder: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""
    once: bool = False
    """Print once, even on a terminal where the study is running."""


@dataclass(frozen=True)
class Report:
    folder: Annotated[Path, tyro.conf.Positional]
    """The study's folder."""
    out: Path | None = None
    """Where to write the report; by default report/ in the study's folder."""


def run(config: Run) -> Outcome:
    """Run a study, or go on with it, and say what it found.

    Every trial is a run folder of its own. Killed at any moment and started again, a study loses
    at most the trials in flight, and those go on from their checkpoints.
    """
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.study import Study

    study = Study.load(config.file, config.out)
    ensure_packs_of_study(study.definition)
    status = study.run(_executor(config, study.definition.executor), config.retry)
    analysis = analyse(study)
    page = write_report(analysis) if status.count("finished") else None
    data = {**analysis.to_dict(), "status": status.to_dict()["counts"], "report": page}
    failed = any(task.state == "failed" for task in [*status.steps, *status.trials])
    return Outcome(data, _found(analysis, page), then=_fail if failed else None)


def _fail() -> None:
    raise SystemExit(1)


def _executor(config: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """[executor] of the file, with what the command line says instead."""
    kind = settings.get("kind", "local")
    if config.executor is not None and config.executor != kind:
        settings, kind = {"kind": config.executor}, config.executor
    if config.workers is not None:
        if kind != "local":
            raise ThresherError(
                f"--workers is for trials on this machine, not for {kind}",
                "set the executor's own options in the file",
            )
        settings = {**settings, "workers": config.workers}
    return settings


def status(config: Status) -> Outcome:
    """Show how far a study is: a live table while it runs, a plain one otherwise."""
    from thresher.study.study import Study

    study = Study.open(config.folder)
    found = study.status()
    if found.held_by is not None and sys.stdout.isatty() and not config.once:
        from rich.live import Live

        with Live(status_table(found), refresh_per_second=2) as live:
            while found.held_by is not None:
                time.sleep(REFRESH_S)
                found = study.status()
                live.update(status_table(found))
        return Outcome(found.to_dict())
    return Outcome(found.to_dict(), status_table(found))


def report(config: Report) -> Outcome:
    """Write a study's report (HTML, figures, Parquet) and print its verdicts."""
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.study import Study

    analysis = analyse(Study.open(config.folder))
    page = write_report(analysis, config.out)
    return Outcome({**analysis.to_dict(), "report": str(page)}, _found(analysis, page))


def status_table(found: "StudyStatus") -> Any:
    """The counts, then a line per step and trial that is not simply finished or waiting."""
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("state", "task", "epoch", "accuracy", "where"):
        table.add_column(name, overflow="fold", justify="right" if name == "accuracy" else "left")
    colours = {"finished": "green", "running": "cyan", "failed": "red", "waiting": "dim"}
    for task in [*found.steps, *found.trials]:
        epoch = f"{task.epoch:.4g}/{task.epochs:g}" if task.epoch is not None else ""
        accuracy = f"{100 * task.accuracy:.2f}" if task.accuracy is not None else ""
        colour = colours.get(task.state, "dim")
        state = f"[{colour}]{task.state}[/{colour}]"
        table.add_row(state, task.name, epoch, accuracy, task.where or task.error)
    who = found.held_by
    running = f"run by {who}" if who else "nobody runs it"
    counts = ", ".join(f"{n} {s}" for s, n in found.to_dict()["counts"].items() if n)
    return Group(table, f"{len(found.trials)} trials: {counts}; {running}")


def _found(analysis: "Analysis", page: Path | None) -> Any:
    """Verdicts first, then the cells, then where the report is."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines: list[Any] = []
    status = analysis.status
    if not status.complete:
        left = ", ".join(f"{status.count(s)} {s}" for s in ("failed", "waiting") if status.count(s))
        lines.append(Text(f"not complete: {left}", style="yellow"))
        lines += [
            Text(f"  {task.name}: {task.error}", style="red")
            for task in [*status.steps, *status.trials]
            if task.state == "failed"
        ]
    overall = [v for v in analysis.verdicts if not v["cell"]] or analysis.verdicts
    styles = {"better": "bold green", "worse": "bold red", "equivalent": "bold blue"}
    lines += [Text(v["sentence"], style=styles.get(v["verdict"], "bold")) for v in overall]
    table = Table(box=None, pad_edge=False, header_style="dim")
    axes = [a for a in analysis.study.definition.axes if a not in analysis.study.definition.tune]
    tuned = ["chosen"] if analysis.choices else []
    for name in [*axes, *tuned, f"{analysis.metric} ({analysis.unit})", "95 % interval", "runs"]:
        table.add_column(name.replace("_", " ").replace(" ()", ""))
    for cell in analysis.cells:
        shown = cell["mean"] is not None
        wide = shown and cell["n"] > 1
        table.add_row(
            *(str(cell[axis]) for axis in axes),
            *([str(cell.get("chosen") or "undecided")] if tuned else []),
            f"{cell['mean']:.2f}" if shown else "–",
            f"{cell['low']:.2f} … {cell['high']:.2f}" if wide else "–",
            str(cell["n"]),
        )
    lines.append(table)
    if page is not None:
        lines.append(Text(f"report: {page}"))
    return Group(*lines)
