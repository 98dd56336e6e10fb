"""The hardware, versions and command that every benchmark result records."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

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
        "command": " ".join(
            ["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]
        ),
    }


def markdown(packages: tuple[str, ...] = PACKAGES) -> str:
    """Return `describe` as a list for the head of a result file."""
    return "\n".join(f"- {key}: {value}" for key, value in describe(packages).items())
