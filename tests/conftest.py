"""Fixtures and hooks of every test: data, shared folders, workers side by side, leak checks.

Under pytest-xdist (`-n`) every worker is a process of its own:

- Tests of one file run in one worker, except those marked `slow`, which are handed out one by one.
  Tests that share an expensive resource name it: `@pytest.mark.xdist_group("slurm")`.
- A test marked `alone` runs while no other worker runs a test, because it measures time.
- What is expensive to make is made once for all workers: `once("name", make)`.
"""

import contextlib
import fcntl
import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forks import FRESH

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
IN_CI = os.environ.get("THRESHER_CI") == "1"
PROCESS_GRACE_SECONDS = 5.0
"""How long a test's processes may take to end after the test."""

# Set before anything imports thresher: packs are made once and kept between test runs.
os.environ.setdefault("THRESHER_HOME", str(ROOT / "build" / "test-home"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Several workers share the cores: threads that spin while they wait take them from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inherited by every process that a test starts, so that those left behind can be found.
os.environ["THRESHER_TEST_SESSION"] = str(os.getpid())

_LEFT_OUT = pytest.StashKey[int]()

# Libraries set these at import, whichever test imports them first.
_TOLERATED = {
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_MODULE_LOADING",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "MPLBACKEND",
    "PYTEST_CURRENT_TEST",
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # Lightning
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TRITON_CACHE_DIR",
    "_RJEM_MALLOC_CONF",  # polars
}
# Servers of Python's multiprocessing end with the process that started them.
_SERVERS = (b"multiprocessing.forkserver", b"multiprocessing.resource_tracker")


# ---- which tests run, where and in which order ------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fresh: is about the start of processes: starts new interpreters, not forks"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two cores: many tests wait for another process most of their time."""
    return min(len(os.sched_getaffinity(0)) * 3 // 2, 12) or 1


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out GPU tests where there is no GPU; slow tests and large groups first, alone last."""
    for item in items:
        if "chromium" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("browser"))
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if gpu and not _has_gpu():
        items[:] = [item for item in items if item not in gpu]
        config.hook.pytest_deselected(items=gpu)
        config.stash[_LEFT_OUT] = len(gpu)
    if hasattr(config, "workerinput"):
        items.sort(
            key=lambda item: (
                item.get_closest_marker("alone") is not None,
                item.get_closest_marker("slow") is None,
                item.get_closest_marker("xdist_group") is None,  # many tests in one worker
            )
        )


def _has_gpu() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False  # known without the seconds that torch takes to load
    import torch

    return torch.cuda.is_available()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # a worker of pytest-xdist: only the controller prints a summary
        output["left_out"] = session.config.stash.get(_LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    left_out = getattr(node, "workeroutput", {}).get("left_out", 0)
    if left_out:
        node.config.stash[_LEFT_OUT] = left_out


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _LEFT_OUT in config.stash:
        left_out = config.stash[_LEFT_OUT]
        terminalreporter.write_line(f"{left_out} GPU tests left out: torch sees no CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail on a skip in CI: every part that the suite needs is installed there."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail on a file that skips itself (`importorskip`) in CI."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


# ---- workers side by side ---------------------------------------------------------------------


def _group(item: pytest.Item) -> str:
    """Return the name of the group of tests that run in one worker, one after the other."""
    if item.get_closest_marker("alone"):
        return "alone"
    if named := item.get_closest_marker("xdist_group"):
        return str(named.args[0])
    return item.nodeid if item.get_closest_marker("slow") else str(item.path)


@pytest.hookimpl(tryfirst=True)  # before xdist tells the controller, which then reads the file
def pytest_collection_finish(session: pytest.Session) -> None:
    # Modules and tests stay for the whole session: a collection need not look at them each time.
    gc.collect()
    gc.freeze()
    if hasattr(session.config, "workerinput"):
        worker = session.config.workerinput["workerid"]
        groups = {item.nodeid: _group(item) for item in session.items}
        file = _run_folder(session.config) / f"groups-{worker}.json"
        part = file.with_suffix(".part")
        part.write_text(json.dumps(groups))
        part.replace(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out groups of tests in their order.

    pytest-xdist's own `loadgroup` passes groups through node ids, which pytest 9.2 ignores, and it
    hands out three slow tests at a time.
    """
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):
        @functools.cached_property
        def groups(self) -> dict[str, str]:
            file = next(_run_folder(config).glob("groups-*.json"))
            groups: dict[str, str] = json.loads(file.read_text())
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self.groups[nodeid]

        def _reschedule(self, node: Any) -> None:
            # A worker needs to know the next test before it runs one, and no more.
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    if config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def _run_folder(config: pytest.Config) -> Path:
    """Return the temporary folder of this test run, the same in all workers."""
    base: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    return base.parent if hasattr(config, "workerinput") else base


@contextlib.contextmanager
def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, kind)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test marked `alone` run while no other worker runs one."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    folder = _run_folder(item.config)
    with contextlib.ExitStack() as held:
        # Whoever waits for all others holds the gate, so that nobody new gets in before it.
        with contextlib.ExitStack() as gate:
            gate.enter_context(_locked(folder / "gate.lock"))
            alone = item.get_closest_marker("alone") is not None
            held.enter_context(
                _locked(folder / "tests.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            )
        return (yield)


Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def once(pytestconfig: pytest.Config) -> Once:
    """Make a folder once in this test run, whichever worker comes first.

    `once("name", make)` calls `make(folder)` for a new, empty folder and returns that folder; later
    calls with the same name only return it. Tests must not write into it.
    """
    root = _run_folder(pytestconfig) / "once"
    root.mkdir(exist_ok=True)

    def make_once(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with _locked(root / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return make_once


# ---- nothing is left behind -------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fail a test that leaves the environment or the process group changed."""
    before = dict(os.environ)
    yield
    torch = sys.modules.get("torch")
    grouped = torch is not None and torch.distributed.is_initialized()
    if torch is not None and grouped:
        torch.distributed.destroy_process_group()
    assert not grouped, "the test left a process group behind"
    changed = {k for k in before.keys() | os.environ.keys() if before.get(k) != os.environ.get(k)}
    for key in changed:
        os.environ.pop(key, None)
    os.environ.update({key: before[key] for key in changed if key in before})
    assert not changed - _TOLERATED, f"the test changed the environment: {changed - _TOLERATED}"


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


def _is_ours(pid: int) -> bool:
    """Return whether a process was started, directly or not, by this one and still runs."""
    # "pid (name) state parent ...", where the name may hold anything.
    state = _read(pid, "stat").rpartition(b")")[2].split()
    if not state or state[0] in b"ZX":
        return False
    child = int(state[1]) == os.getpid()
    if not child and f"THRESHER_TEST_SESSION={os.getpid()}".encode() not in _read(
        pid, "environ"
    ).split(b"\0"):
        return False
    return not (child and any(server in _read(pid, "cmdline") for server in _SERVERS))


# ---- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let a test marked `fresh` start new interpreters instead of forks."""
    marked = request.node.get_closest_marker("fresh") is not None
    if marked:
        os.environ[FRESH] = "1"
    yield
    if marked:
        del os.environ[FRESH]


@pytest.fixture(autouse=True)
def _modules_are_frozen() -> Iterator[None]:
    """Leave modules that a test has imported out of later collections of garbage.

    A study collects after each trial, which takes 0.1 s with torch, scipy and matplotlib.
    """
    before = len(sys.modules)
    yield
    if len(sys.modules) > before + 100:
        gc.collect()
        gc.freeze()


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def thresher() -> Run:
    """Run the command line in a process of its own; `fresh=True` starts a new interpreter."""

    def run(
        *arguments: object,
        timeout: float = 300,
        env: dict[str, str] | None = None,
        fresh: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "thresher", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {}), **({FRESH: "1"} if fresh else {})},
        )

    return run


@pytest.fixture(scope="session")
def digits() -> Path:
    """Return the folder of the digits pack."""
    return _pack("digits")


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """Return the folder of the complete CIFAR-10 pack, downloaded on first use."""
    return _pack("cifar10")


@pytest.fixture(scope="session")
def chromium() -> "Iterator[Browser]":
    """Start one browser per worker: Playwright cannot be started twice in a process."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


def _pack(name: str) -> Path:
    from thresher.data.get import get
    from thresher.errors import ThresherError

    try:
        return get(name).root
    except ThresherError as error:
        pytest.skip(f"{name} could not be had: {error}")
