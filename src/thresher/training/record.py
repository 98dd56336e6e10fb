"""What a run leaves on disk: metrics line by line, and on what it ran."""

import json
import math
import time
from pathlib import Path
from typing import IO, Any

from thresher.errors import ThresherError
from thresher.paths import disk_errors, write_text

FLUSH_EVERY_S = 2.0


def finite(value: float | None) -> float | None:
    """JSON has no nan and no infinity: they become null."""
    return None if value is None or not math.isfinite(value) else float(value)


class Metrics:
    """`metrics.jsonl`: one object a line, `kind` step or epoch; TensorBoard beside it on request.

    A no-op on all ranks but the first. Lines are flushed every two seconds, and by `flush`.
    """

    def __init__(self, path: Path, active: bool, tensorboard: bool) -> None:
        self.path, self.active = path, active
        self._file: IO[str] | None = None
        self._flushed = time.monotonic()
        self._board: Any = None
        if active and tensorboard:
            self._board = _board(path.parent / "tensorboard")

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`: a resumed run writes them again. A cut line goes too."""
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


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ThresherError(
            "--tensorboard needs the package tensorboard", "pip install tensorboard"
        ) from None
    return SummaryWriter(str(folder))
