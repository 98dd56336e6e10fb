"""Fixtures and hooks of every test: data, shared folders, workers side by side.

Under pytest-xdist (`-n`) every worker is a process of its own:

- Tests of one file run in one worker, except those marked `slow`, which are handed out one by one.
  Tests that share an expensive resource name it: `@pytest.mark.xdist_group("slurm")`.
- Slow tests come first, but workers beyond the number of cores begin with the quick ones.
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
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cheap_memory import RARELY
from forks import FRESH, SESSION, server, use_server
from leaks import (  # noqa: F401 (fixtures of every test)
    _constants_stay,
    _no_process_is_left,
    _nothing_leaks,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
IN_CI = os.environ.get("THRESHER_CI") == "1"

# Set before anything imports thresher: packs are made once and kept between test runs.
os.environ.setdefault("THRESHER_HOME", str(ROOT / "build" / "test-home"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Several workers share the cores: threads that spin while they wait take them from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inherited by every process that a test starts, so that those left behind can be found.
os.environ[SESSION] = str(os.getpid())

for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    # `make test &` and `nohup make test`: all that is started ignores the signal that tests send.
    # To keep the tests running when the terminal is closed, use `setsid make test`.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

_LEFT_OUT = pytest.StashKey[int]()


# ---- which tests run, where and in which order ------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fresh: is about the start of processes: starts new interpreters, not forks"
    )
    if hasattr(config, "workerinput"):
        use_server(*config.workerinput["fork_server"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the workers of pytest-xdist share one fork server, which loads while they collect."""
    node.workerinput["fork_server"] = server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each core: many tests wait for another process most of their time."""
    return min(len(os.sched_getaffinity(0)) * 2, 12)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported, which stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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
    if "torch" in sys.modules:
        import quick_agent  # noqa: F401
    # Modules and tests stay for the whole session: a collection need not look at them each time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)
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

        def _assign_work_unit(self, node: Any) -> None:
            # Slow tests slow each other down, so only as many run at a time as there are cores.
            quick = [name for name in self.workqueue if name != "alone"]
            if quick and self.nodes.index(node) >= len(os.sched_getaffinity(0)):
                self.workqueue.move_to_end(quick[-1], last=False)
            super()._assign_work_unit(node)

        def _reschedule(self, node: Any) -> None:
            # A worker needs to know the next test, or that there is none, before it runs one.
            # One that replaces another has no tests until it has collected them.
            while (
                node in self.registered_collections
                and not node.shutting_down
                and (not self.workqueue or self._pending_of(self.assigned_work[node]) < 2)
            ):
                super()._reschedule(node)

        def remove_node(self, node: Any) -> str | None:
            """Hand out what a worker has not run, but not the test in which it ended."""
            work = self.assigned_work.pop(node)
            left = [(tests, name) for tests in work.values() for name in tests if not tests[name]]
            if not left:
                return None
            tests, ended_in = left[0]
            tests[ended_in] = True
            self.workqueue.update({k: v for k, v in work.items() if not all(v.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return str(ended_in)

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
    # The shell is the same browser without its windows; it takes a fifth less processor time.
    names = ("chromium-headless-shell", "chromium", "chromium-browser")
    program = next(filter(None, map(shutil.which, names)), None)
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
