"""Compare engines: DDP's static buckets against Horovod's dynamic queue.

Each number of workers runs as a group of processes, on this machine or on a test bed of hosts.
"""

import itertools
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from thresher.distributed.local_group import run_local
from thresher.distributed.names import Engine
from thresher.distributed.worker import call_in_group
from thresher.errors import InvalidValueError
from thresher.lab.comparison import FIGURE, RESULT, ComparisonConfig
from thresher.lab.testbed import Testbed
from thresher.lab.timeline import summarize
from thresher.models.registry import check
from thresher.options import Conditions, from_mapping, option, to_mapping, validate
from thresher.paths import read_json, write_json
from thresher.progress import bar
from thresher.report.scaling_figures import EngineCurve, engines_figure
from thresher.scaling.pipeline import Span
from thresher.scaling.synthetic import SyntheticBatch

UNFINISHED = "unfinished.json"
"""Measurements so far, in the output folder; removed at the end."""
DDP: Conditions = {"hosts": False, "engines": ("ddp",)}
HOROVOD: Conditions = {"hosts": False, "engines": ("horovod",)}


@dataclass(frozen=True, kw_only=True)
class EngineComparisonConfig(ComparisonConfig):
    """Options of `compare_engines`."""

    engines: tuple[Engine, ...] = option(get_args(Engine), only_with={"hosts": False})
    """Engines to compare."""
    workers: tuple[int, ...] = option((1, 2, 4), ge=1, only_with={"hosts": False})
    """Numbers of workers."""
    scaling: Literal["weak", "strong"] = option("weak", only_with={"hosts": False})
    """Whether each worker has the batch (weak) or they share it (strong)."""
    bucket_mb: tuple[float, ...] = option((1.0, 5.0, 25.0), gt=0, only_with=DDP)
    """DDP's bucket sizes in MiB."""
    fusion_mb: tuple[float, ...] = option((0.0, 128.0), ge=0, only_with=HOROVOD)
    """Horovod's fusion buffers in MiB; 0 sends each gradient alone."""
    cycle_ms: tuple[float, ...] = option((1.0, 5.0), gt=0, only_with=HOROVOD)
    """Horovod's cycle times in milliseconds."""
    steps: int = option(10, ge=1, only_with={"hosts": False})
    """Steps to time with each setting."""
    image_size: int = option(32, ge=1, only_with={"hosts": False})
    """Side of the random images."""


@dataclass(frozen=True)
class EngineSetting:
    """An engine with its options; those of the other engine are None."""

    engine: str
    bucket_mb: float | None = None
    fusion_mb: float | None = None
    cycle_ms: float | None = None

    @property
    def label(self) -> str:
        """The options in words."""
        if self.engine == "ddp":
            return f"buckets of {self.bucket_mb:g} MiB"
        return f"fusion {self.fusion_mb:g} MiB, cycle {self.cycle_ms:g} ms"


@dataclass(frozen=True)
class EngineOrder:
    """What a group of workers times."""

    model: str
    batch: SyntheticBatch
    """The batch of each worker."""
    compress: str
    steps: int
    settings: tuple[EngineSetting, ...]


@dataclass(frozen=True)
class EngineTimes:
    """What the workers measured with one setting: median seconds, and a step of rank 0."""

    step_s: float
    compute_s: float
    """The step without communication."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class EngineRow(EngineSetting):
    """One setting on one number of workers; seconds are medians over steps."""

    workers: int
    batch_size: int
    """The global batch."""
    step_s: float
    compute_s: float
    """The step without communication."""
    exposed_s: float
    """Communication that the backward pass does not hide."""
    images_per_s: float
    communication_s: float
    negotiation_s: float
    hidden: float
    """Share of the communication during the backward pass."""
    efficiency: float = 0.0
    """Images per second and worker, against the best setting of the fewest workers."""
    best: bool = False
    """Whether it is the fastest setting of its engine on that number of workers."""
    spans: tuple[Span, ...] = field(default=(), repr=False)
    """One step as rank 0 recorded it."""


@dataclass(frozen=True)
class EngineComparison:
    """Result of `compare_engines`."""

    model: str
    scaling: str
    rows: list[EngineRow]
    figure: Path | None = None

    def best_on_most_workers(self) -> list[EngineRow]:
        """Return the best row of each engine on the largest number of workers."""
        most = max(row.workers for row in self.rows)
        return [row for row in self.rows if row.best and row.workers == most]

    def to_dict(self) -> dict[str, object]:
        """Return the content of compare.json."""
        rows = [asdict(row) for row in self.rows]
        for row in rows:
            del row["spans"]
        timelines = {r.engine: [asdict(s) for s in r.spans] for r in self.best_on_most_workers()}
        values: dict[str, object] = {"model": self.model, "scaling": self.scaling, "rows": rows}
        values["timelines"] = timelines
        if self.figure is not None:
            values["figure"] = str(self.figure)
        return values


def engine_settings(config: EngineComparisonConfig) -> list[EngineSetting]:
    """Return every engine with every combination of its options."""
    settings = []
    if "ddp" in config.engines:
        settings += [EngineSetting("ddp", bucket_mb=size) for size in config.bucket_mb]
    if "horovod" in config.engines:
        from thresher.distributed.horovod import require

        require()
        settings += [
            EngineSetting("horovod", fusion_mb=size, cycle_ms=cycle)
            for size, cycle in itertools.product(config.fusion_mb, config.cycle_ms)
        ]
    return settings


def compare_engines(config: EngineComparisonConfig) -> EngineComparison:
    """Time every setting of every engine on every number of workers.

    With `out`, compare.json and compare.png are written there; a call that was killed resumes from
    what it had measured.
    """
    validate(config)
    for name in ("models", "compress"):
        if len(given := getattr(config, name) or ("",)) > 1:
            what = f"engines are compared with one of `{name}`, got {', '.join(given)}"
            raise InvalidValueError(what, "compare them one after the other", name)
    settings = engine_settings(config)
    model = (config.models or ("alexnet-small",))[0]
    check(model)
    most = max(config.workers)
    if config.scaling == "strong" and config.batch_size < most:
        what = f"batch_size must be at least the number of workers ({most}) with strong scaling"
        raise InvalidValueError(f"{what}, got {config.batch_size}", "", "batch_size")
    if config.hosts is not None and most > config.hosts:
        what = f"workers must be at most `hosts` ({config.hosts}), got {most}"
        raise InvalidValueError(what, "", "workers")
    rows = _judged(_measure(config, model, settings))
    comparison = EngineComparison(model, config.scaling, rows)
    if config.out is not None:
        comparison = replace(comparison, figure=config.out / FIGURE)
        _draw(comparison, config.out / FIGURE)
        write_json(config.out / RESULT, comparison.to_dict())
        (config.out / UNFINISHED).unlink(missing_ok=True)
    return comparison


def _measure(
    config: EngineComparisonConfig, model: str, settings: Sequence[EngineSetting]
) -> list[EngineRow]:
    kept = None if config.out is None else config.out / UNFINISHED
    measured: dict[str, list[dict[str, object]]] = {}
    if kept is not None and kept.exists():
        measured = read_json(kept, "unfinished comparison")
    # Horovod reads its settings once per process, DDP whenever it is built.
    ddp = [s for s in settings if s.engine == "ddp"]
    groups = [ddp] if ddp else []
    groups += [[s] for s in settings if s.engine == "horovod"]
    rows: list[EngineRow] = []
    with ExitStack() as stack:
        bed = None
        if config.hosts is not None:
            bed = stack.enter_context(Testbed(max(config.workers), config.link))
        shown = stack.enter_context(bar("comparing engines", len(config.workers) * len(groups)))
        for count, group in itertools.product(config.workers, groups):
            shown.note(f"{group[0].engine}, {count} workers")
            weak = config.scaling == "weak"
            local = config.batch_size if weak else -(-config.batch_size // count)
            batch = SyntheticBatch((3, config.image_size, config.image_size), 10, local)
            compress = (config.compress or ("none",))[0]
            order = to_mapping(EngineOrder(model, batch, compress, config.steps, tuple(group)))
            key = json.dumps([count, config.link if config.hosts else "here", order])
            if key not in measured:
                run = partial(bed.run, hosts=count) if bed else partial(run_local, count)
                target = "thresher.lab.engine_step:time_settings"
                measured[key] = call_in_group(target, order, run)
                if kept is not None:
                    write_json(kept, measured)
            whole = config.batch_size * count if weak else config.batch_size
            for setting, values in zip(group, measured[key], strict=True):
                times = from_mapping(EngineTimes, values)
                rows.append(
                    EngineRow(
                        **asdict(setting),
                        **asdict(summarize(times.spans)),
                        workers=count,
                        batch_size=whole,
                        step_s=times.step_s,
                        compute_s=times.compute_s,
                        exposed_s=max(0.0, times.step_s - times.compute_s),
                        images_per_s=whole / times.step_s,
                        spans=times.spans,
                    )
                )
            shown.advance()
    return rows


def _judged(rows: Sequence[EngineRow]) -> list[EngineRow]:
    """Fill in `efficiency` and `best`."""
    fewest = min(row.workers for row in rows)
    per_worker = max(row.images_per_s / row.workers for row in rows if row.workers == fewest)
    slowest_first = sorted(rows, key=lambda row: row.step_s, reverse=True)
    fastest = {(row.engine, row.workers): row.step_s for row in slowest_first}
    return [
        replace(
            row,
            efficiency=row.images_per_s / row.workers / per_worker,
            best=row.step_s == fastest[row.engine, row.workers],
        )
        for row in rows
    ]


def _draw(comparison: EngineComparison, path: Path) -> None:
    curves = []
    for top in comparison.best_on_most_workers():
        own = [row for row in comparison.rows if row.engine == top.engine]
        best = sorted((row for row in own if row.best), key=lambda row: row.workers)
        curves.append(
            EngineCurve(
                engine=top.engine,
                points=[(row.workers, row.images_per_s) for row in own],
                best=[(row.workers, row.images_per_s) for row in best],
                title=f"{top.engine}, {top.label}: "
                f"{100 * top.hidden:.0f} % of the communication hidden",
                spans=top.spans,
            )
        )
    engines_figure(curves, path)
