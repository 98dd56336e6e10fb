"""This machine as a cluster: measured once, kept as a TOML file in the cache, never guessed."""

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from thresher.paths import home, write_text
from thresher.progress import say
from thresher.scaling.cluster import Cluster, parse


def local_cluster(again: bool = False) -> Cluster:
    """The measured figures of this machine; about fifteen seconds the first time, then a file.

    Without an accelerator the device is the processor with all its cores, and the workers of the
    node share it.
    """
    path = _path()
    if again or not path.exists():
        say(f"measuring this machine once, into {path}")
        write_text(path, _measure())
    return parse(path.read_text(encoding="utf-8"), "local", str(path))


def _path() -> Path:
    """One file per machine, hardware and torch: a shared home serves many nodes."""
    import torch

    gpus = torch.cuda.device_count()
    kind = torch.cuda.get_device_name(0).replace(" ", "-") if gpus else platform.machine()
    name = f"{platform.node()}-{kind}-{gpus or os.cpu_count()}-torch{torch.__version__}"
    return home() / "clusters" / f"{name}.toml"


def _measure() -> str:
    import torch

    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    cores = os.cpu_count() or 1
    workers = torch.cuda.device_count() if cuda else max(2, cores)
    precisions = {"fp32": torch.float32}
    if cuda:
        # Not on a processor: many emulate half precision hundreds of times slower than float32.
        precisions |= {"bf16": torch.bfloat16, "fp16": torch.float16}
    rates = {name: _matrix_tflops(device, kind) for name, kind in precisions.items()}
    memory = _memory_gbs(device)
    storage = _storage_gbs()
    if workers >= 2:
        from thresher.scaling.costs import fit_ring
        from thresher.scaling.links import measure_group

        fit = fit_ring(measure_group(2)["points"], 2)
        latency_us = max(0.01, fit.latency_s * 1e6)
        link_gbs = 1e-9 / fit.seconds_per_byte if fit.seconds_per_byte else memory / 2
    else:
        # One device: no message ever leaves it; its own memory is the only link there is.
        latency_us, link_gbs = 1.0, memory / 2
    name = torch.cuda.get_device_name(0) if cuda else f"{platform.machine()} ×{cores}"
    if cuda:
        memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
    else:
        memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    peaks = ", ".join(f"{key} = {value:.4g}" for key, value in rates.items())
    shared = "" if cuda else f"shared_cores = {cores}\n"
    return (
        f'title = "this machine: {name}"\n\n'
        f'[device]\nname = "{name}"\nmemory_gb = {memory_gb:.3g}\nmemory_gbs = {memory:.4g}\n'
        f"peak_tflops = {{ {peaks} }}\n\n"
        f"[node]\ndevices = {workers}\nlink_gbs = {link_gbs:.4g}\nlatency_us = {latency_us:.4g}\n"
        f"{shared}\n"
        f"[network]\nlink_gbs = {link_gbs:.4g}\nlatency_us = {latency_us:.4g}\nnodes = 1\n\n"
        f"[storage]\ntotal_gbs = {storage:.4g}\nnode_gbs = {storage:.4g}\n\n"
        f'[measured]\nwhen = "{time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}"\n'
        f'torch = "{torch.__version__}"\n'
        'how = "matrix product, memory copy, all-reduce of two processes, reading a file"\n'
    )


def _matrix_tflops(device: str, kind: Any) -> float:
    """The best of a few square matrix products, 10¹² operations per second."""
    import torch

    side = 8192 if device == "cuda" else 768
    a = torch.randn(side, side, device=device).to(kind)
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best / 1e12


def _memory_gbs(device: str) -> float:
    """Bytes read and written by a copy, 10⁹ per second."""
    import torch

    source = torch.ones(2**26 if device == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return 2 * source.numel() * 4 / best / 1e9


def _storage_gbs() -> float:
    """Reading a file of 64 MiB in the cache folder, past the page cache where that can be had."""
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
