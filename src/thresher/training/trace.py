"""A Chrome trace of a few steps, for chrome://tracing or ui.perfetto.dev."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.profiler import profile


def start_trace(folder: Path) -> "profile":
    """Record steps five to ten in `trace.json`; call `step` after each and `stop` at the end."""
    from torch.profiler import profile, schedule

    profiler = profile(
        schedule=schedule(wait=2, warmup=2, active=6, repeat=1),
        on_trace_ready=lambda taken: taken.export_chrome_trace(str(folder / "trace.json")),
    )
    profiler.start()
    return profiler
