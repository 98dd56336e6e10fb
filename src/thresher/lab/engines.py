"""Engines side by side (claim O5): DDP's static buckets against Horovod's dynamic queue.

Each number of workers runs as a group of processes, here or on a test bed of hosts; see
`compare_rules` for scaling rules on a real network.
"""

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError, nearest
from thresher.lab.ranks import Finished, run_here
from thresher.lab.testbed import Testbed
from thresher.paths import read_json, write_json
from thresher.progress import bar
from thresher.scaling.timeline import Span, summary

ENGINES = ("ddp", "horovod")
Run = Callable[[int, Sequence[str]], list[Finished]]


@dataclass(frozen=True)
class Setting:
    """An engine with its knobs; those of the other engine are None."""

    engine: str
    bucket_mb: float | None = None
    fusion_mb: float | None = None
    cycle_ms: float | None = None

    @property
    def label(self) -> str:
        if self.engine == "ddp":
            return f"ddp, buckets of {self.bucket_mb:g} MB"
        return f"horovod, fusion {self.fusion_mb:g} MB, cycle {self.cycle_ms:g} ms"


@dataclass
class Row:
    """What one setting did on `workers` workers; seconds are medians over steps."""

    engine: str
    workers: int
    batch_size: int
    bucket_mb: float | None
    fusion_mb: float | None
    cycle_ms: float | None
    step_s: float
    compute_s: float
    exposed_s: float
    images_per_s: float
    efficiency: float
    communication_s: float
    negotiation_s: float
    hidden: float
    best: bool = False
    spans: list[Span] = field(default_factory=list, repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "spans"}


def settings(
    engines: Sequence[str],
    bucket_mb: Sequence[float],
    fusion_mb: Sequence[float],
    cycle_ms: Sequence[float],
) -> list[Setting]:
    """Every engine with every value of its own knobs; an unknown or missing engine is refused."""
    for engine in engines:
        if engine not in ENGINES:
            raise ThresherError(f'there is no engine "{engine}"', nearest(engine, ENGINES))
    if "horovod" in engines:
        from thresher.distributed.horovod import require

        require()
    for name, values in (("bucket", bucket_mb), ("cycle time", cycle_ms)):
        if any(value <= 0 for value in values):
            raise ThresherError(f"a {name} of {min(values):g} means nothing", "give more than zero")
    if any(value < 0 for value in fusion_mb):
        raise ThresherError(f"a fusion buffer of {min(fusion_mb):g} MB means nothing")
    swept = [Setting("ddp", bucket_mb=b) for b in bucket_mb if "ddp" in engines]
    if "horovod" in engines:
        swept += [Setting("horovod", fusion_mb=f, cycle_ms=c) for f in fusion_mb for c in cycle_ms]
    return swept


def compare_engines(
    model: str,
    workers: Sequence[int],
    swept: Sequence[Setting],
    batch_size: int = 32,
    scaling: str = "weak",
    compress: str = "none",
    image_size: int = 32,
    channels: int = 3,
    classes: int = 10,
    steps: int = 10,
    hosts: bool = False,
    link: str | None = None,
    kept: Path | None = None,
) -> list[Row]:
    """Time every setting on every number of workers; the fastest of each engine is marked `best`.

    `batch_size` is the global batch (strong) or each worker's (weak). Efficiency is images per
    second and worker, against the best that the fewest workers reached.
    `hosts`: each worker on a host of its own, with links of speed `link`.
    `kept`: a file for what is measured so far; the same call made again after a kill goes on.
    """
    if scaling == "strong" and batch_size < max(workers):
        raise ThresherError(
            f"{max(workers)} workers cannot share a batch of {batch_size}", "use a larger batch"
        )
    rows: list[Row] = []
    measured: dict[str, Any] = {}
    if kept is not None and kept.exists():
        measured = read_json(kept, "unfinished comparison")
    # Horovod reads its settings once in the life of a process; DDP may be made anew.
    groups = [[s for s in swept if s.engine == "ddp"]]
    groups = [g for g in groups if g] + [[s] for s in swept if s.engine == "horovod"]
    with ExitStack() as stack:
        run: Run = run_here
        if hosts:
            bed = stack.enter_context(Testbed(max(workers), link))

            def run(count: int, argv: Sequence[str]) -> list[Finished]:
                return bed.run(argv, hosts=count)

        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="thresher-compare-"))
        shown = stack.enter_context(bar("comparing engines", len(workers) * len(groups)))
        task = {
            "model": model,
            "shape": [channels, image_size, image_size],
            "classes": classes,
            "compress": compress,
            "steps": steps,
        }
        for count, together in itertools.product(workers, groups):
            shown.note(f"{together[0].engine}, {count} workers")
            local = batch_size if scaling == "weak" else -(-batch_size // count)
            chosen = [asdict(setting) for setting in together]
            asked = {**task, "settings": chosen, "batch": local}
            key = json.dumps([count, link if hosts else "here", asked])
            if key not in measured:
                text = json.dumps({**asked, "folder": folder})
                ranks = run(count, [sys.executable, "-m", "thresher.lab.engine_step", text])
                measured[key] = json.loads(ranks[0].stdout.strip().splitlines()[-1])
                if kept is not None:
                    write_json(kept, measured)
            whole = batch_size * count if scaling == "weak" else batch_size
            for setting, found in zip(together, measured[key], strict=True):
                rows.append(_row(setting, count, whole, found))
            shown.advance()
    _judge(rows)
    return rows


def _row(setting: Setting, workers: int, batch_size: int, found: dict[str, Any]) -> Row:
    seen = summary(found["spans"])
    return Row(
        **asdict(setting),
        workers=workers,
        batch_size=batch_size,
        step_s=found["step_s"],
        compute_s=found["compute_s"],
        exposed_s=max(0.0, found["step_s"] - found["compute_s"]),
        images_per_s=batch_size / found["step_s"],
        efficiency=0.0,
        communication_s=seen["communication_s"],
        negotiation_s=seen["negotiation_s"],
        hidden=seen["hidden"],
        spans=found["spans"],
    )


def _judge(rows: list[Row]) -> None:
    """Efficiency against the best throughput of the fewest workers, per worker; mark the best."""
    fewest = min(row.workers for row in rows)
    per_worker = max(row.images_per_s / row.workers for row in rows if row.workers == fewest)
    for row in rows:
        row.efficiency = row.images_per_s / row.workers / per_worker
    for key in {(row.engine, row.workers) for row in rows}:
        same = [row for row in rows if (row.engine, row.workers) == key]
        min(same, key=lambda row: row.step_s).best = True
