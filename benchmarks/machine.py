"""What benchmarks share: the machine that every result records, and how results are written."""

import importlib.metadata
import json
import os
import platform
import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from thresher.paths import write_text

PACKAGES = ("torch", "numpy", "scikit-learn", "openTSNE", "pyarrow", "thresher")


def cpu_name() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.lower().startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def gpu_name() -> str | None:
    """Return the name of the first GPU; None without one."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def children_cpu() -> float:
    """Return the processor time of all processes that this one has started and that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return processor, cores, system, Python and package versions, and the command line."""
    versions = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": f"{cpu_name()} ({platform.machine()}), {os.cpu_count()} cores",
        **({"gpu": gpu} if (gpu := gpu_name()) else {}),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
        "command": " ".join(["python", "-m", f"benchmarks.{_name()}", *sys.argv[1:]]),
    }


def markdown(packages: tuple[str, ...] = PACKAGES) -> str:
    """Return `describe` as a list for the head of a result file."""
    return "\n".join(f"- {key}: {value}" for key, value in describe(packages).items())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return [head, "|---" * len(heads) + "|", *body]


def page(
    title: str,
    lines: Iterable[str],
    packages: tuple[str, ...] = PACKAGES,
    about: Sequence[str] = (),
) -> str:
    """Return a Markdown page: the machine, with what else is to be said `about` it, and `lines`."""
    return "\n".join([f"# {title}", "", markdown(packages), *about, "", *lines]) + "\n"


def publish(text: str, folder: Path | None) -> None:
    """Print the page of a benchmark, and write it to BENCHMARK.md in a folder if there is one."""
    print(text)
    if folder is not None:
        write_text(folder / f"{_name()}.md", text)


def publish_json(report: Any, file: Path | None) -> None:
    """Print a report as JSON, and write it to a file if there is one."""
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text)
    if file is not None:
        write_text(file, f"{text}\n")


def _name() -> str:
    """Return the name of the running benchmark."""
    return Path(sys.argv[0]).stem
