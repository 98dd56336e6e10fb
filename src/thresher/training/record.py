"""The record of a run: its folder, and its metrics line by line."""

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from thresher.errors import MissingDependencyError
from thresher.options import option
from thresher.paths import disk_errors, write_text

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
    record_dynamics: bool = False
    """Record each sample's EL2N score, forgetting events, loss, margin and uncertainty in
    dynamics.parquet."""
    noise_scale: bool = False
    """Measure the gradient noise scale, which suggests a batch size."""
    tensorboard: bool = option(False, changes_result=False)
    """Write TensorBoard events into the folder."""
    trace: bool = option(False, changes_result=False)
    """Write a Chrome trace of a few steps into the folder."""


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Evaluations, and the target that ends a run."""

    evaluate_every: int = option(1, ge=0, changes_result=False)
    """Epochs between evaluations; 0: only at the end."""
    target_loss: float | None = None
    """Stop when the loss on validation (without one: on test) is this low."""
    target_accuracy: float | None = option(None, gt=0, le=1)
    """Stop when the accuracy there, from 0 to 1, is this high."""


def finite(value: float | None) -> float | None:
    """Return None instead of nan and infinity, which JSON lacks."""
    return None if value is None or not math.isfinite(value) else float(value)


class Metrics:
    """Writes `metrics.jsonl`, one object a line, and on request TensorBoard; only if `active`."""

    def __init__(self, path: Path, active: bool, tensorboard: bool) -> None:
        self.path, self.active = path, active
        self._file: IO[str] | None = None
        self._flushed = time.monotonic()
        self._board: Any = None
        if active and tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise MissingDependencyError(
                    "`tensorboard` needs the package tensorboard", "pip install tensorboard"
                ) from None
            self._board = SummaryWriter(str(path.parent / "tensorboard"))

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`, which a resumed run writes again, and a truncated one."""
        if not self.active or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
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
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float) and name not in ("epoch", "samples"):
                    self._board.add_scalar(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        if self._file is not None:
            with disk_errors(self.path):
                self._file.flush()
        self._flushed = time.monotonic()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with disk_errors(self.path):
                file.close()
        if self._board is not None:
            self._board.close()
