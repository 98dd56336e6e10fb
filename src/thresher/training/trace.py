"""A Chrome trace of a few steps, for chrome://tracing or ui.perfetto.dev."""

from pathlib import Path
from typing import Any

SKIPPED, ACTIVE = 4, 6


class Trace:
    """Records steps five to ten in `trace.json`; does nothing unless `active`."""

    def __init__(self, folder: Path, active: bool) -> None:
        self._profiler: Any = None
        if not active:
            return
        from torch.profiler import profile, schedule

        path = folder / "trace.json"
        self._profiler = profile(
            schedule=schedule(wait=SKIPPED - 2, warmup=2, active=ACTIVE, repeat=1),
            on_trace_ready=lambda taken: taken.export_chrome_trace(str(path)),
        )
        self._profiler.start()

    def step(self) -> None:
        """Count a training step."""
        if self._profiler is not None:
            self._profiler.step()

    def close(self) -> None:
        """Stop recording."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
