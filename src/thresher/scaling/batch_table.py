"""A table of batch sizes and the samples that each needed to a target.

Read from a CSV file or from the folder of a study. Columns of a CSV file:

    batch (or batch_size)     samples of a step
    samples, steps or epochs  until the target; the first of them that is there is used
    target                    what was reached, if the rows have several targets
    runs                      how many runs a row is the mean of: its weight, 1 by default
    lr                        the learning rate of the row
    samples_per_epoch         training samples, for `epochs`

Cells are separated by commas, semicolons or tabs. Other columns are ignored with a
warning. Rows with the same batch and target are repeats.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from thresher.csv_table import read_csv_table
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, NotFoundError, counted
from thresher.options import changes_result
from thresher.paths import RunPaths, StudyPaths, read_json, read_run_json
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

logger = logging.getLogger(__name__)

COUNTS = ("samples", "steps", "epochs")
COLUMNS = ("batch", "batch_size", *COUNTS, "target", "runs", "lr", "samples_per_epoch")
RANGES = {
    **dict.fromkeys(("batch", "batch_size"), (1, 1e9)),
    **{"samples": (1e-6, 1e18), "steps": (1, 1e15), "epochs": (1e-6, 1e6)},
    **{"runs": (1, 1e6), "lr": (1e-12, 1e6), "samples_per_epoch": (1, 1e12)},
}
"""Smallest and largest number of each column: others are slips or placeholders, and a fit to them
means nothing. Samples may be counted in millions, as in tables of MLPerf."""
MIXED = 4.0
"""Repeats without a named target that differ by more than this factor had different ones."""
CONTRADICTORY = 10.0
"""Repeats of one named target that differ by more than this factor are refused."""


@dataclass(frozen=True)
class BatchRow:
    """One run, or the mean of several, that reached a target."""

    batch: int
    samples: float
    """Samples to the target."""
    target: str = ""
    """What was reached; "" if the table does not say."""
    runs: float = 1.0
    """Its weight: how many runs it is the mean of."""
    lr: float | None = None
    line: int = field(default=0, compare=False)
    """Its line in the file."""
    config: TrainConfig | None = field(default=None, repr=False, compare=False)
    """That of the run; None if the table does not say."""


def read_batch_table(path: Path, samples_per_epoch: float | None = None) -> list[BatchRow]:
    """Read a CSV file or the folder of a study.

    Args:
        path: The file or folder.
        samples_per_epoch: Training samples, if the table counts epochs and has no such column.

    Raises:
        NotFoundError: There is nothing at `path`, or no run in the study reached a target.
        InvalidValueError: The table is wrong; the message names the line.
    """
    rows = read_study(path) if path.is_dir() else read_csv(path, samples_per_epoch)
    if len(rows) < 2:
        what = f"{path} has {counted(len(rows), 'row')}"
        raise InvalidValueError(what, "the fit needs two batch sizes or more")
    named = sum(bool(row.target) for row in rows)
    if 0 < named < len(rows):
        what = f"{path} has a target in {named} of its {len(rows)} rows"
        raise InvalidValueError(what, "fill the column target in all rows, or remove it")
    if not path.is_dir():  # one setting of a study may have runs that needed much longer
        _refuse_contradictions(path, rows)
    return rows


def _refuse_contradictions(path: Path, rows: list[BatchRow]) -> None:
    for batch, target in sorted({(row.batch, row.target) for row in rows}):
        same = [row for row in rows if (row.batch, row.target) == (batch, target)]
        low, high = (end(same, key=lambda row: row.samples) for end in (min, max))
        if high.samples > (CONTRADICTORY if target else MIXED) * low.samples:
            first, second = sorted((low, high), key=lambda row: row.line)
            raise InvalidValueError(
                f"{path}, lines {first.line} and {second.line}: batch {batch:,} needs "
                f"{first.samples:,.0f} and {second.samples:,.0f} samples, which cannot be "
                + (f"repeats of the target {target}" if target else "one target"),
                "remove the wrong row" if target else "add a column target, or remove wrong rows",
            )


def read_csv(path: Path, samples_per_epoch: float | None = None) -> list[BatchRow]:
    """Read the rows of a CSV file."""
    table = read_csv_table(path, lower=True, pad=True)
    count = _count_column(path, table.head)
    if ignored := [name for name in table.head if name not in ("", *COLUMNS)]:
        logger.warning(
            "%s of %s has no effect; columns are %s", ", ".join(ignored), path, ", ".join(COLUMNS)
        )
    return [
        _row(
            _Cells(path, line, dict(zip(table.head, row, strict=True))),
            count,
            samples_per_epoch,
        )
        for line, row in zip(table.lines, table.rows, strict=True)
    ]


def _count_column(path: Path, heads: list[str]) -> str:
    """Return the column of the samples, after checking that the columns needed are there."""
    if "batch" not in heads and "batch_size" not in heads:
        found = ", ".join(filter(None, heads)) or "none"
        raise InvalidValueError(f"{path} has no column batch", f"its columns are {found}")
    for name in COUNTS:
        if name in heads:
            return name
    raise InvalidValueError(f"{path} has no column samples, steps or epochs", "add one of them")


@dataclass(frozen=True)
class _Cells:
    """The cells of one line, and its place for messages."""

    path: Path
    line: int
    cells: Mapping[str, str]

    @property
    def where(self) -> str:
        return f"{self.path}, line {self.line}"

    def text(self, name: str) -> str:
        return self.cells.get(name, "")

    def number(self, name: str) -> float:
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            found = f'got "{text[:40]}"' if text else "it is empty"
            raise InvalidValueError(f"{self.where}: {name} must be a number, {found}") from None
        low, high = RANGES[name]
        if not low <= value <= high:
            allowed = f"in [{low:g}, {high:g}]"
            raise InvalidValueError(f"{self.where}: {name} must be {allowed}, got {text[:40]}")
        return value

    def optional(self, name: str) -> float | None:
        return self.number(name) if self.text(name) else None


def _row(cells: _Cells, count: str, samples_per_epoch: float | None) -> BatchRow:
    name = "batch" if "batch" in cells.cells else "batch_size"
    batch = cells.number(name)
    if (cells.optional("batch_size") or batch) != batch:
        what = f"{cells.where}: batch is {batch:g}, but batch_size {cells.text('batch_size')}"
        raise InvalidValueError(what, "remove one of the columns")
    if batch != int(batch):
        raise InvalidValueError(f"{cells.where}: {name} must be an integer, got {batch:g}")
    samples = cells.number(count)
    if count == "steps":
        samples *= batch
    elif count == "epochs":
        per_epoch = cells.optional("samples_per_epoch") or samples_per_epoch
        if per_epoch is None:
            what = f"{cells.where}: the samples of an epoch are not known"
            fix = "give `samples_per_epoch` or `data`, or add the column samples_per_epoch"
            raise InvalidValueError(what, fix)
        samples *= per_epoch
    return BatchRow(
        batch=int(batch),
        samples=samples,
        target=_target(cells.text("target")),
        runs=cells.optional("runs") or 1.0,
        lr=cells.optional("lr"),
        line=cells.line,
    )


def _target(text: str) -> str:
    """Return one spelling of a number: 0.750 and .75 are the same target."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


TUNED = frozenset(
    {"lr", "lr_rule", "base_batch", "warmup_epochs", "momentum", "weight_decay", "epochs"}
)
"""Options that a study may tune for each batch size. The schedule depends on the epochs, and trials
of fewer epochs stay in the folder of a study whose epochs were raised."""
FREE = TUNED | {"batch_size", "seed", "target_accuracy", "target_loss"}
"""Options that may differ between the runs of a study."""


def read_study(root: Path) -> list[BatchRow]:
    """Return the runs of a study that reached their target.

    Where several settings were tried at a batch size, the rows are those of the setting with which
    most runs reached it, and of these the one that needed the fewest samples, as for a rate that
    was tuned for each batch size. Runs that did not reach the target are left out with a warning.
    """
    settings: dict[tuple[str, int], dict[str, list[BatchRow | None]]] = {}
    fixed: dict[str, object] = {}
    for result in _results(StudyPaths(root).trials):
        _check_same(root, fixed, result)
        target, batch = _target_of(result), result.resolved.global_batch
        setting = str([getattr(result.config, name) for name in sorted(TUNED)])
        rows = settings.setdefault((target, batch), {}).setdefault(setting, [])
        reached, row = result.time_to_target, None
        if reached is not None:
            lr = result.resolved.peak_lr or None
            row = BatchRow(batch, reached.samples, target, lr=lr, config=result.config)
        rows.append(row)
    chosen: list[BatchRow] = []
    for (target, batch), tried in settings.items():
        best = min(tried.values(), key=_order)
        if None in best:
            missed = f"{best.count(None)} of {len(best)} runs at batch {batch}"
            logger.warning("%s did not reach the target %s and are left out", missed, target)
        chosen += [row for row in best if row is not None]
    if not chosen:
        what = f"{root} holds no run that reached a target"
        raise NotFoundError(what, "run a study with `target_accuracy`, or give a CSV file")
    return chosen


def check_data(root: Path, pack: Pack) -> None:
    """Refuse a study whose runs were trained on other data: they needed other samples."""
    trials = StudyPaths(root).trials
    for folder in sorted(trials.iterdir()) if trials.is_dir() else ():
        file = RunPaths(folder).config
        data = read_run_json(file, "run's configuration").get("data", {}) if file.exists() else {}
        if data.get("fingerprint", pack.fingerprint) != pack.fingerprint:
            raise InvalidValueError(
                f"the runs of {root} were trained on {data.get('name', 'other data')}, whose "
                f"images or labels are not those of {pack.name}",
                "plan with the data of the study, or give a CSV file",
                "data",
            )


def _results(trials: Path) -> Iterator[RunResult]:
    for folder in sorted(trials.iterdir()) if trials.is_dir() else ():
        paths = RunPaths(folder)
        if paths.result.is_file():
            if "config" not in read_json(paths.result, "run's result"):
                what = f"{folder} is the trial of a command, whose batch size is not known"
                raise InvalidValueError(what, "write batch sizes and samples to a CSV file")
            yield RunResult.load(folder)


def _target_of(result: RunResult) -> str:
    config = result.config
    accuracy = "" if config.target_accuracy is None else f"{config.target_accuracy:g}"
    loss = "" if config.target_loss is None else f"loss {config.target_loss:g}"
    return " ".join(filter(None, (accuracy, loss)))


def _check_same(root: Path, fixed: dict[str, object], result: RunResult) -> None:
    """Refuse a study that also varies what the samples depend on, such as the model or a run's
    batch."""
    if result.config.batch_schedule is not None:
        what = f"the runs of {root} have no single batch size: batch_schedule changes it"
        raise InvalidValueError(what, "give runs of constant batch sizes")
    # A run is not changed by evaluations, but reaches its target in one of them.
    for name in sorted((changes_result(type(result.config)) - FREE) | {"evaluate_every"}):
        value = getattr(result.config, name)
        if fixed.setdefault(name, value) != value:
            what = f"the runs of {root} differ in {name}: {fixed[name]} and {value}"
            raise InvalidValueError(what, "write the rows of one value to a CSV file")


def _order(rows: list[BatchRow | None]) -> tuple[float, float]:
    """Order settings by the share of runs that missed the target, then by mean log samples."""
    reached = [math.log(row.samples) for row in rows if row is not None]
    mean = sum(reached) / len(reached) if reached else math.inf
    return 1 - len(reached) / len(rows), mean
