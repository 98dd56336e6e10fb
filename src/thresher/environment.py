"""What a result was made on: versions, hardware, commit; and which cores and device to use."""

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.errors import InvalidValueError
from thresher.startup import quick_imports
from thresher.version import __version__

if TYPE_CHECKING:
    import torch


def versions(packages: Iterable[str] = ("torch", "numpy")) -> dict[str, str]:
    """Return the versions of Thresher, Python and those of `packages` that are installed."""
    installed = {"thresher": __version__, "python": platform.python_version()}
    found = {name: _installed_version(name) for name in packages}
    installed |= {name: version for name, version in found.items() if version is not None}
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        installed["cuda"] = torch.version.cuda
    return installed


@functools.cache  # a long text is parsed for it
def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def builds_gpu_kernels() -> bool:
    """Return whether kernels for GPUs can be built: Triton needs a C compiler."""
    compilers = (os.environ.get("CC", "cc"), "gcc", "clang")
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, compilers))


@functools.cache
def hardware(device: str) -> dict[str, str | int]:
    """Return processor, core count and system; also the GPU if `device` is "cuda"."""
    described: dict[str, str | int] = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count() or 1,
    }
    with open("/proc/cpuinfo") if os.path.exists("/proc/cpuinfo") else open(os.devnull) as lines:
        for line in lines:
            if line.lower().startswith("model name"):
                described["processor"] = line.split(":", 1)[1].strip()
                break
    if device == "cuda":
        import torch

        described["gpu"] = torch.cuda.get_device_name()
        described["gpus"] = torch.cuda.device_count()
    return described


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the checkout that this code runs from; None if it was installed.

    If files of the package were changed since that commit, it ends in `+changes`.
    """
    here = Path(__file__).resolve().parent
    run = functools.partial(subprocess.run, capture_output=True, text=True, timeout=10)
    git = ["git", "-C", str(here)]
    try:
        root, commit = run(
            [*git, "rev-parse", "--show-toplevel", "HEAD"], check=True
        ).stdout.split()
        changed = run([*git, "diff", "--quiet", "HEAD", "--", "."]).returncode != 0
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # site-packages inside somebody's repository is not a checkout of ours.
    if not here.is_relative_to(Path(root) / "src"):
        return None
    return f"{commit}+changes" if changed else commit


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(name: str = "auto") -> "torch.device":
    """Return the torch device for "auto" (cuda if there is one, else cpu), "cpu", "cuda" or "mps".

    auto does not choose mps, on which Thresher is not tested: see `device_check`.
    """
    with quick_imports():
        import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    available["mps"] = torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if available["cuda"] else "cpu")
    kind = name.partition(":")[0]
    if not available.get(kind, False):
        raise InvalidValueError(f'device "{name}" is not available here', "use cpu", "device")
    return torch.device(name)


def likely_device(name: str = "auto") -> str:
    """Return the type of device that `choose_device` would choose, without importing torch.

    For auto it looks for the files of a GPU's driver. A driver that does not work, or a torch that
    does not use it, is noticed only by `choose_device`.
    """
    if name == "cpu":
        return name
    if name != "auto" or "torch" in sys.modules or sys.platform != "linux":
        return str(choose_device(name))
    return "cuda" if has_gpu_files() else "cpu"


def has_gpu_files() -> bool:
    """Return whether the driver of a GPU that this process may use has left its files."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    files = ("nvidia[0-9]*", "dxg", "kfd")
    return any(any(Path("/dev").glob(pattern)) for pattern in files)
