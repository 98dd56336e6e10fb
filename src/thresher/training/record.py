"""The record of a run: its folder, and its metrics line by line."""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from thresher.options import option
from thresher.paths import disk_errors, write_text
from thresher.training.batches import BatchConfig
from thresher.training.sinks import Sink, SinkName, open_sinks

logger = logging.getLogger(__name__)
FLUSH_EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Where a run is written, and what is recorded."""

    out: str = option(changes_result=False)
    """Folder of the run; a finished run is never overwritten."""
    resume: bool = option(False, changes_result=False)
    """Continue from the newest checkpoint in the folder; without one, start."""
    checkpoint_every: int | None = option(None, ge=1, changes_result=False)
    """Steps between checkpoints; by default one a minute."""
    keep_checkpoint: bool = option(False, changes_result=False)
    """Keep a checkpoint of the last step of a finished run, for `branch_from`."""
    branch_from: str | None = None
    """Start with the weights, optimizer state and position in the data of this finished run, which
    had `keep_checkpoint`. `epochs` counts from its beginning."""
    record_dynamics: bool = False
    """Record each sample's EL2N score, forgetting events, loss, margin and uncertainty in
    dynamics.parquet."""
    noise_scale: bool = False
    """Measure the gradient noise scale, which suggests a batch size."""
    sharpness: bool = False
    """Measure the top Hessian eigenvalue and the loss under random perturbations of the weights at
    the end; takes as long as training on about 50,000 samples."""
    log: tuple[SinkName, ...] = option((), changes_result=False)
    """Also log to TensorBoard, Weights & Biases or MLflow; a resumed run continues its records."""
    tensorboard: bool = option(False, changes_result=False)
    """The same as `log` tensorboard."""
    trace: bool = option(False, changes_result=False)
    """Write a Chrome trace of a few steps into the folder."""

    @property
    def sinks(self) -> tuple[SinkName, ...]:
        """The names in `log`, and that of `tensorboard`, each once."""
        return tuple(dict.fromkeys((*self.log, *(("tensorboard",) if self.tensorboard else ()))))


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Evaluations, and the target that ends a run."""

    evaluate_every: int = option(1, ge=0, changes_result=False)
    """Epochs between evaluations; 0: only at the end."""
    target_loss: float | None = None
    """Stop when the loss on validation (without one: on test) is this low."""
    target_accuracy: float | None = option(None, gt=0, le=1)
    """Stop when the accuracy there, from 0 to 1, is this high."""


def late_target(values: Mapping[str, Any], epochs: float | None = None) -> str:
    """Return a sentence if a run with these options looks at its target only when it ends.

    `epochs` are those that it lasts: more than the option under the budget of a full run. If they
    are not known, it is said only of runs that do not evaluate before.
    """
    targets = [name for name in ("target_accuracy", "target_loss") if values.get(name) is not None]
    every = values.get("evaluate_every", TargetConfig.evaluate_every)
    if epochs is None:
        by_epochs = values.get("budget", BatchConfig.budget) == "epochs"
        epochs = values.get("epochs", BatchConfig.epochs) if by_epochs else math.inf
    if not targets or epochs <= 1 or 0 < every < epochs:
        return ""
    return f"{targets[0]} is looked at only when a run ends, because evaluate_every is {every}"


def finite(value: float | None) -> float | None:
    """Return None instead of nan and infinity, which JSON lacks."""
    return None if value is None or not math.isfinite(value) else float(value)


class Metrics:
    """Writes `metrics.jsonl`, one object a line, and passes numbers on; only if `active`."""

    def __init__(self, path: Path, active: bool) -> None:
        self.path, self.active = path, active
        self._file: IO[str] | None = None
        self._flushed = time.monotonic()
        self._sinks: dict[SinkName, Sink] = {}

    def begin(
        self, step: int, epoch: int, sinks: Collection[SinkName], options: Mapping[str, Any]
    ) -> None:
        """Begin after `step`, with `epoch` epochs ended: open the sinks, and drop later lines.

        Those are written again, also that of an epoch whose last step is `step` if the checkpoint
        was taken before the epoch ended.
        """
        if not self.active:
            return
        self._sinks = open_sinks(sinks, self.path.parent, step, options)
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                known = json.loads(line)
                ended = known.get("kind") != "epoch" or known["epoch"] <= epoch
                if known["step"] <= step and ended:
                    kept.append(line)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        write_text(self.path, "".join(f"{line}\n" for line in kept))

    def write(self, kind: str, step: int, **values: Any) -> None:
        if not self.active:
            return
        with disk_errors(self.path):
            if self._file is None:
                self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
            line = {"kind": kind, "step": step, **values}
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            if time.monotonic() - self._flushed > FLUSH_EVERY_S:
                self.flush()
        if self._sinks:
            numbers = {
                f"{kind}/{name}": value
                for name, value in values.items()
                if isinstance(value, int | float) and name not in ("epoch", "samples")
            }
            self._each(lambda sink: sink.write(step, numbers))

    def _each(self, call: Callable[[Sink], None]) -> None:
        """Call every sink; one that fails is given up, because training must go on."""
        for name, sink in list(self._sinks.items()):
            try:
                call(sink)
            except Exception as error:
                logger.warning("%s failed and gets no more metrics: %s", name, error)
                del self._sinks[name]

    def flush(self) -> None:
        if self._file is not None:
            with disk_errors(self.path):
                self._file.flush()
        self._each(lambda sink: sink.flush())
        self._flushed = time.monotonic()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with disk_errors(self.path):
                file.close()
        self._each(lambda sink: sink.close())
        self._sinks = {}
