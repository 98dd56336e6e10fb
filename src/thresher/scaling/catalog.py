"""Find a cluster: one that ships with Thresher, a TOML file, or this machine.

This machine is measured once and kept as a TOML file in the cache.
"""

import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.environment import core_count
from thresher.errors import InvalidValueError, NotFoundError, nearest
from thresher.paths import home, write_text
from thresher.read_errors import unreadable
from thresher.scaling.cluster import Cluster, parse_cluster
from thresher.scaling.profile import DeviceInfo
from thresher.scaling.synthetic import timed

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
REPEATS = 6
"""Of each measurement of this machine."""


def cluster_names() -> list[str]:
    """Return the names of the clusters that ship with Thresher, and `local`."""
    files = resources.files("thresher.scaling").joinpath("clusters").iterdir()
    return sorted({f.name[:-5] for f in files if f.name.endswith(".toml")} | {"local"})


def load_cluster(name: str | Path) -> Cluster:
    """Load a cluster: a name (`summit`), a file (`mine.toml`) or `local`, which is this machine,
    measured the first time (about fifteen seconds)."""
    text = str(name)
    if text == "local":
        return local_cluster()
    if text.endswith(".toml") or "/" in text:
        path = Path(text)
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidValueError(f"{path} is not a cluster file: not a text file") from None
        except OSError as error:
            wrong = NotFoundError(f"cannot read cluster file {path}: {error.strerror}")
            raise unreadable(path, error) or wrong from None
        return parse_cluster(content, path.stem, str(path))
    if text not in cluster_names():
        fix = nearest(text, cluster_names())
        if not fix.endswith("?"):
            fix += ", or give a FILE.toml"
        raise NotFoundError(f'unknown cluster "{text}"', fix)
    source = resources.files("thresher.scaling").joinpath("clusters", f"{text}.toml")
    return parse_cluster(source.read_text(encoding="utf-8"), text, text)


def describe_device(kind: str) -> DeviceInfo:
    """Describe the first device of `kind` ("cpu" or "cuda") of this machine; its name tells that a
    profile was measured on the local cluster's device."""
    import torch

    cores = core_count()
    if kind == "cuda":
        return DeviceInfo("cuda", torch.cuda.get_device_name(0), 1, cores)
    return DeviceInfo("cpu", f"{platform.machine()} ×{cores}", torch.get_num_threads(), cores)


def local_cluster() -> Cluster:
    """Return this machine as a cluster; the first call measures it (about fifteen seconds).

    Without a GPU the device is the processor with all its cores, which the workers share.
    """
    path = _path()
    if not path.exists():
        logger.info("measuring this machine once, into %s", path)
        write_text(path, _measure())
    return parse_cluster(path.read_text(encoding="utf-8"), "local", str(path))


def _path() -> Path:
    import torch

    # One file per machine, hardware and torch version: a home folder may be shared.
    gpus = torch.cuda.device_count()
    kind = torch.cuda.get_device_name(0).replace(" ", "-") if gpus else platform.machine()
    name = f"{platform.node()}-{kind}-{gpus or core_count()}-torch{torch.__version__}"
    return home() / "clusters" / f"{name}.toml"


def _measure() -> str:
    import torch

    cuda = torch.cuda.is_available()
    device = describe_device("cuda" if cuda else "cpu")
    workers = torch.cuda.device_count() if cuda else max(2, device.cores)
    precisions = {"fp32": torch.float32}
    if cuda:
        # Not on a CPU: many emulate half precision hundreds of times slower than float32.
        precisions |= {"bf16": torch.bfloat16, "fp16": torch.float16}
    rates = {name: _matrix_tflops(device.kind, kind) for name, kind in precisions.items()}
    memory = _memory_gbs(device.kind)
    storage = _storage_gbs()
    if workers >= 2:
        from thresher.scaling.links import measure_group

        fit = measure_group(2).allreduce
        latency_us = max(0.01, fit.latency_s * 1e6)
        link_gbs = 1e-9 / fit.seconds_per_byte if fit.seconds_per_byte else memory / 2
    else:
        # No message leaves a single device; its memory is the only link.
        latency_us, link_gbs = 1.0, memory / 2
    if cuda:
        memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    else:
        memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    peaks = ", ".join(f"{key} = {value:.4g}" for key, value in rates.items())
    shared = "" if cuda else f"shared_cores = {device.cores}\n"
    return (
        f'title = "this machine: {device.name}"\n\n'
        f'[device]\nname = "{device.name}"\n'
        f"memory_gb = {memory_gb:.3g}\nmemory_gbs = {memory:.4g}\n"
        f"peak_tflops = {{ {peaks} }}\n\n"
        f"[node]\ndevices = {workers}\nlink_gbs = {link_gbs:.4g}\nlatency_us = {latency_us:.4g}\n"
        f"{shared}\n"
        f"[network]\nlink_gbs = {link_gbs:.4g}\nlatency_us = {latency_us:.4g}\nnodes = 1\n\n"
        f"[storage]\ntotal_gbs = {storage:.4g}\nnode_gbs = {storage:.4g}\n\n"
        f'[measured]\nwhen = "{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}"\n'
        f'torch = "{torch.__version__}"\n'
        'how = "matrix product, memory copy, all-reduce of two processes, reading a file"\n'
    )


def _fastest(action: Callable[[], object], device: str) -> float:
    return min(timed(action, device) for _ in range(REPEATS))


def _matrix_tflops(device: str, dtype: "torch.dtype") -> float:
    import torch

    side = 8192 if device == "cuda" else 768
    a = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _fastest(lambda: a @ a, device) / 1e12


def _memory_gbs(device: str) -> float:
    import torch

    source = torch.ones(2**26 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _fastest(lambda: target.copy_(source), device) / 1e9


def _storage_gbs() -> float:
    """Read a 64 MiB file of the cache folder, out of the page cache where the system allows it."""
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(2**20)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".speed-") as file:
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        file.seek(0)
        while file.read(2**20):
            pass
        return 64 * 2**20 / (time.perf_counter() - begin) / 1e9
