"""Nothing is left behind: after a test, environment, processes and constants are as before it."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forks import SESSION, started

PROCESS_GRACE_SECONDS = 5.0
"""How long a test's processes may take to end after the test."""

# Libraries set these at import, whichever test imports them first.
_TOLERATED = {
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",  # `train`, on a machine with a GPU
    "CUDA_MODULE_LOADING",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "MPLBACKEND",
    "PYTEST_CURRENT_TEST",
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",  # torch.compile
    "_RJEM_MALLOC_CONF",  # polars
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",  # torch.compile
}
_PLAIN = (bool, int, float, str, tuple, frozenset)
# Servers of Python's multiprocessing end with the process that started them.
_SERVERS = (b"multiprocessing.forkserver", b"multiprocessing.resource_tracker")


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves the environment, the process group or oneDNN changed."""
    # The command line in this process leaves a handler with the stderr of an earlier test.
    logger = logging.getLogger("thresher")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    before = dict(os.environ)
    yield
    torch = sys.modules.get("torch")
    if torch is not None and not torch.backends.mkldnn.enabled:
        torch.backends.mkldnn.enabled = True
        pytest.fail("the test left oneDNN switched off: later runs compute in another way")
    grouped = torch is not None and torch.distributed.is_initialized()
    if torch is not None and grouped:
        torch.distributed.destroy_process_group()
    assert not grouped, "the test left a process group behind"
    changed = {k for k in before.keys() | os.environ.keys() if before.get(k) != os.environ.get(k)}
    for key in changed:
        os.environ.pop(key, None)
    os.environ.update({key: before[key] for key in changed if key in before})
    assert not changed - _TOLERATED, f"the test changed the environment: {changed - _TOLERATED}"


@pytest.fixture(autouse=True, scope="module")
def _constants_stay() -> Iterator[None]:
    """Fail a file of tests that leaves a constant or a class attribute of Thresher changed."""
    before = _constants()
    yield
    changed = [
        (owner, name, value) for owner, name, value in before if vars(owner).get(name) is not value
    ]
    for owner, name, value in changed:
        setattr(owner, name, value)
    names = sorted(f"{owner.__name__}.{name}" for owner, name, _ in changed)
    assert not names, f"the tests of this file left these changed: {', '.join(names)}"


_read_modules: set[str] = set()
_known_constants: list[tuple[Any, str, object]] = []


def _constants() -> list[tuple[Any, str, object]]:
    """Return the plain values of each loaded module of Thresher and of its classes.

    Modules are read once: what a test changes is changed back.
    """
    loaded = {name for name in sys.modules if name.partition(".")[0] == "thresher"}
    for name in loaded - _read_modules:
        module = sys.modules[name]
        values = vars(module).values()
        classes = [c for c in values if isinstance(c, type) and c.__module__ == name]
        _known_constants.extend((module, k, v) for k, v in vars(module).items() if k.isupper())
        _known_constants.extend(
            (c, k, v) for c in classes for k, v in vars(c).items() if type(v) in _PLAIN
        )
    _read_modules.update(loaded)
    return _known_constants


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves processes running, and end them.

    Costs under a millisecond: /proc is listed twice, and only processes that are new are read.
    """
    before = _pids()
    yield
    deadline = time.monotonic() + PROCESS_GRACE_SECONDS
    while left := [pid for pid in _pids() - before if _is_ours(pid)]:
        if time.monotonic() > deadline:
            commands = [_read(pid, "cmdline").replace(b"\0", b" ").decode() for pid in left]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            pytest.fail(f"the test left processes running: {commands}")
        time.sleep(0.02)


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _read(pid: int, name: str) -> bytes:
    """Return a file of a process; empty if it has ended or belongs to another user."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


_KERNEL = 2
"""The parent of threads of the kernel, which have no environment."""


def _is_ours(pid: int) -> bool:
    """Return whether a process was started, directly or not, by this one and still runs."""
    # "pid (name) state parent ...", where the name may hold anything.
    state = _read(pid, "stat").rpartition(b")")[2].split()
    if not state or state[0] in b"ZX":
        return False
    if pid in started():
        return True
    child = int(state[1]) == os.getpid()
    environment = _read(pid, "environ")
    if not environment and int(state[1]) != _KERNEL:
        time.sleep(0.1)  # a process that is just starting its program has none yet
        environment = _read(pid, "environ")
    if not child and f"{SESSION}={os.getpid()}".encode() not in environment.split(b"\0"):
        return False
    return not (child and any(server in _read(pid, "cmdline") for server in _SERVERS))
