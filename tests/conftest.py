"""What every test stands on: a cache folder, real data, and nothing left behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parent.parent
IN_CI = os.environ.get("THRESHER_CI") == "1"

# Fixed before anything imports thresher: packs are made once and kept between test runs.
os.environ.setdefault("THRESHER_HOME", str(ROOT / "build" / "test-home"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

_LEFT_OUT = pytest.StashKey[int]()

# Libraries set these at import, whichever test imports them first.
_TOLERATED = {
    "CUDA_MODULE_LOADING",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "MPLBACKEND",
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TRITON_CACHE_DIR",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests run where there is a GPU; elsewhere they are left out, and that is said."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        items[:] = [item for item in items if item not in gpu]
        config.hook.pytest_deselected(items=gpu)
        config.stash[_LEFT_OUT] = len(gpu)


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
    """In CI a skip is an error: every part that the suite needs is installed there."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself (`importorskip`)."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """A test leaves the environment and the process group as it found them."""
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


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def thresher() -> Run:
    """Run the real command line in a process of its own."""

    def run(
        *arguments: object, timeout: float = 300, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "thresher", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )

    return run


@pytest.fixture(scope="session")
def digits() -> Path:
    """The folder of the digits pack."""
    return _pack("digits")


@pytest.fixture(scope="session")
def cifar10() -> Path:
    """The folder of the real, complete CIFAR-10 pack, fetched on first use."""
    return _pack("cifar10")


@pytest.fixture(scope="session")
def chromium() -> "Iterator[Browser]":
    """One browser for the whole session: Playwright cannot be started twice in a process."""
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
