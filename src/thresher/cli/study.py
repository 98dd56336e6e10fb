"""`thresher study`: run many trainings and compare them with error bars."""

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from thresher.cli.commands import Outcome, values_of
from thresher.cli.packs import ensure_packs_of_study
from thresher.errors import AlreadyExistsError, InvalidValueError, ThresherError, counted
from thresher.options import option
from thresher.paths import StudyPaths, read_json
from thresher.startup import importing, quick_scipy, skip_pandas
from thresher.study.definition import ComparisonConfig, MetricConfig

if TYPE_CHECKING:
    from thresher.study.analysis import Analysis
    from thresher.study.status import StudyStatus
    from thresher.study.tasks import Values

REFRESH_S = 2.0
MOST_ROWS = 40
"""Tasks of which `study status` lists each; a live table must fit into a terminal."""
RETRY = "correct the cause and run the study with --retry"


@dataclass(frozen=True, kw_only=True)
class Run:
    file: Path = option(positional=True)
    """Study file (TOML); see examples/."""
    out: Path
    """Folder of the study; finished trials in it are kept, interrupted ones are resumed."""
    retry: bool = False
    """Run failed trials again."""
    executor: Literal["in-process", "local", "slurm"] | None = None
    """Where to run; default: as the study file says."""
    workers: int | None = option(None, ge=0)
    """Trials that run at once on this machine; default: as the study file says."""


@dataclass(frozen=True, kw_only=True)
class Status:
    folder: Path = option(positional=True)
    """Folder of the study."""
    once: bool = False
    """Print once and exit, even if the study is running."""


@dataclass(frozen=True, kw_only=True)
class Report:
    folder: Path = option(positional=True)
    """Folder of the study."""
    out: Path | None = None
    """Folder to write to; default: report/ in the study's folder."""


@dataclass(frozen=True, kw_only=True)
class Import(MetricConfig):
    file: Path = option(positional=True)
    """CSV file with one row per run: `seed`, the metric, and axes."""
    out: Path
    """Folder to write to: the report is in report/ below it."""
    axes: tuple[str, ...] = ()
    """Columns that are axes; default: all but seed and the metric."""


def run(config: Run) -> Outcome:
    """Run a study, or resume it, and print its verdicts.

    Each trial is a run folder. If the study is killed and run again, only the trials that were
    running are affected, and those resume from their checkpoints.
    """
    from thresher.study.study import Study

    skip_pandas()
    study = Study.load(config.file, config.out)
    ensure_packs_of_study(study.definition)
    executor = _executor(config, study.definition.executor)
    # What the report needs is loaded while the trials run, unless they import much here themselves.
    elsewhere = executor.get("kind") != "in-process"
    report = ("thresher.report.page", "matplotlib.figure") if elsewhere else ()
    with importing(*report):
        status = study.run(executor, config.retry)
    if status.failed and not status.count("finished"):
        first = status.failed[0]
        raise ThresherError(f"no trial finished; {first.name}: {first.error}", RETRY)
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse

    analysis = analyse(study)
    page = StudyPaths(study.root).report / "index.html"
    # A finished study may be somebody else's.
    if status.count("finished") and not (status.complete and not os.access(study.root, os.W_OK)):
        page = write_report(analysis)
    report_page = page if page.exists() else None
    data = {**analysis.to_dict(), "status": status.to_dict()["counts"], "report": report_page}
    return Outcome(data, _summary(analysis, report_page), code=1 if status.failed else 0)


def _executor(config: Run, stored: "Values") -> "Values":
    from thresher.study.executors import executor_settings

    settings = dict(executor_settings(stored, config.executor))
    if config.workers is None:
        return settings
    kind = settings.get("kind", "local")
    if kind != "local":
        what = f'workers is an option of the local executor, got executor "{kind}"'
        raise InvalidValueError(what, "set the executor's options in the study file", "workers")
    return {**settings, "workers": config.workers}


def status(config: Status) -> Outcome:
    """Show the progress of a study; a live table while it is running."""
    from thresher.study.study import Study

    study = Study.open(config.folder)
    state = study.status()
    if state.held_by is not None and sys.stdout.isatty() and not config.once:
        from rich.console import Console
        from rich.live import Live

        console = Console(markup=False, emoji=False)
        with Live(_status_table(state), console=console, refresh_per_second=2) as live:
            while state.held_by is not None:
                time.sleep(REFRESH_S)
                state = study.status()
                live.update(_status_table(state))
        return Outcome(state.to_dict())
    return Outcome(state.to_dict(), _status_table(state))


def report(config: Report) -> Outcome:
    """Write the report of a study (HTML, figures, Parquet) and print its verdicts.

    With --json nothing is written unless `out` is given.
    """
    quick_scipy()
    from thresher.study.analysis import analyse

    skip_pandas()
    analysis = analyse(config.folder)

    def written() -> Path:
        from thresher.report.page import write_report  # loads matplotlib

        return write_report(analysis, config.out)

    page = None if config.out is None else written()
    data = {**analysis.to_dict(), "report": page}
    return Outcome(data, lambda: _summary(analysis, page or written()))


def import_runs(config: Import) -> Outcome:
    """Compare runs that were made elsewhere: the verdicts and the report of a study.

    The first value of the compared column is the baseline. Runs with the same seed are compared
    with each other.
    """
    from thresher.report.page import write_report
    from thresher.study.analysis import analyse
    from thresher.study.imported import check_paired, read_runs

    paths = StudyPaths(config.out)
    if paths.definition.exists():
        raise AlreadyExistsError(f"{config.out} is a study", "choose another folder")
    trials = read_runs(config.file, config.metric, config.axes)
    analysis = analyse(trials, ComparisonConfig(**values_of(config, MetricConfig)))
    check_paired(config.file, analysis)
    analysis = replace(analysis, title=config.file.stem)
    page = write_report(analysis, paths.report)
    return Outcome({**analysis.to_dict(), "report": str(page)}, _summary(analysis, page))


def _status_table(status: "StudyStatus") -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    tasks, hint = [*status.steps, *status.trials], ""
    colours = {"finished": "green", "running": "cyan", "failed": "red", "waiting": "dim"}
    if len(tasks) > MOST_ROWS:
        tasks = [task for task in tasks if task.state in ("running", "failed")][:MOST_ROWS]
        hint = "\nOf so many, only tasks that run or failed are listed; --json lists all."
    rows: list[tuple[Text, str, str, str, str]] = []
    for task in tasks:
        epoch = f"{task.epoch:.4g}" if task.epoch is not None else ""
        if epoch and task.epochs is not None:  # a command says only how many it trained
            epoch += f"/{task.epochs:g}"
        accuracy = f"{100 * task.accuracy:.2f}" if task.accuracy is not None else ""
        state = Text(task.state, style=colours.get(task.state, "dim"))
        rows.append((state, task.name, epoch, accuracy, task.where or task.error))
    # Empty columns, as those of a command, would cost the names of the tasks their room.
    heads = ("state", "task", "epoch", "accuracy (%)", "where")
    shown = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    for n in shown:
        right = heads[n].startswith("accuracy")
        table.add_column(heads[n], overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(row[n] for n in shown))
    running = "not running"
    if status.held_by:
        running = f"run by {status.held_by}"
    elif _has_slurm_jobs(status):
        running = "no process collects the results of its SLURM jobs; run the study again"
    counts = ", ".join(f"{n:,} {state}" for state, n in status.to_dict()["counts"].items() if n)
    summary = f"{counted(len(status.trials), 'trial')}: {counts}; {running}{hint}"
    return Group(table, summary) if tasks else Group(summary)


def _has_slurm_jobs(status: "StudyStatus") -> bool:
    """Return whether a trial or step that is not finished was submitted to SLURM."""
    file = StudyPaths(status.root).slurm_jobs
    submitted = read_json(file, "file of SLURM jobs") if file.exists() else {}
    return any(
        task.state == "waiting" and task.name in submitted
        for task in [*status.steps, *status.trials]
    )


def _summary(analysis: "Analysis", page: Path | None) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from thresher.report.tables import shown_interval
    from thresher.study.summaries import describe_cell

    lines: list[Any] = []
    status = analysis.status
    if status is not None and not status.complete:
        states = ("running", "queued", "failed", "waiting")
        left = ", ".join(f"{status.count(s)} {s}" for s in states if status.count(s))
        lines.append(Text(f"not complete: {left}", style="yellow"))
        lines += [Text(f"  {task.name}: {task.error}", style="red") for task in status.failed]
        if status.failed:
            lines.append(Text(f"To run failed tasks again, {RETRY}", style="yellow"))
    lines += [Text(note, style="yellow") for note in analysis.notes]
    lines += [""] if lines else []
    styles = {"better": "bold green", "worse": "bold red", "equivalent": "bold blue"}
    family = {True: "Primary: ", False: "Exploratory: ", None: ""}
    lines += [
        Text(family[c.primary] + c.sentence, style=styles.get(c.verdict, "bold"))
        for c in analysis.headlines
    ]
    lines += [""] if analysis.headlines else []
    table = Table(box=None, pad_edge=False, header_style="dim")
    tuned = ["chosen"] if analysis.choices else []
    for name in [*analysis.axes, *tuned]:
        table.add_column(name.replace("_", " "))
    for name in (analysis.label(), "95 % interval", "runs"):
        table.add_column(name, justify="right")
    for c in analysis.cells:
        low, high = shown_interval(c, analysis.metric)
        table.add_row(
            *(str(c.cell[axis]) for axis in analysis.axes),
            *([describe_cell(c.chosen or {}) or "undecided"] if tuned else []),
            f"{c.mean:.{c.digits}f}" if c.mean is not None else "–",
            f"{low:.{c.digits}f} … {high:.{c.digits}f}" if c.n > 1 else "–",
            str(c.n),
        )
    lines.append(table)
    if page is not None:
        lines += ["", Text(f"report: {page}", no_wrap=True)]
    return Group(*lines)
