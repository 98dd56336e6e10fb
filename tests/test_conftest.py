"""What tests/conftest.py promises, shown on a small suite of its own with three workers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import os, subprocess, sys, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

def _note(name, what):
    with open(HERE / f"{name}.txt", "a") as file:
        file.write(f"{what} {os.getpid()} {time.monotonic()}\\n")

@pytest.mark.parametrize("n", range(4))
def test_of_one_file(n):
    for _ in range(300):  # until the slow tests run in other workers
        if (HERE / "slow.txt").exists() and (HERE / "slow.txt").read_text().count("begin") == 2:
            break
        time.sleep(0.1)
    _note("file", n)

@pytest.mark.slow
@pytest.mark.parametrize("n", range(2))
def test_slow(n):
    _note("order", "slow")
    _note("slow", "begin")
    time.sleep(1)
    _note("slow", "end")

@pytest.mark.alone
def test_alone():
    _note("order", "alone")
    _note("alone", "begin")
    time.sleep(1)
    _note("alone", "end")

@pytest.mark.gpu
def test_gpu():
    raise AssertionError("there is no GPU")

@pytest.mark.parametrize("n", range(2))
@pytest.mark.slow
def test_once(n, once):
    folder = once("shared", lambda folder: (folder / "pid").write_text(str(os.getpid())))
    _note("once", (folder / "pid").read_text())

def test_that_leaves_a_process():
    # The parent ends, its child does not: the orphan must be found too.
    sleep = "import subprocess; subprocess.Popen(['sleep', '98765'])"
    subprocess.run([sys.executable, "-c", sleep])

def test_that_changes_the_environment():
    os.environ["LEFT"] = "1"

def test_that_skips():
    pytest.skip("something is missing")

def test_that_ends_its_worker():
    os._exit(1)

def test_in_the_worker_that_replaces_it():
    pass
"""


def _lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()]


@pytest.mark.slow  # starts six interpreters
def test_a_suite_on_three_workers_and_two_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    folder = tmp_path / "tests"
    folder.mkdir()
    for name in ("conftest.py", "cheap_memory.py", "forks.py", "leaks.py"):
        shutil.copy(Path(__file__).parent / name, folder)
    shutil.copy(Path(__file__).parents[1] / "pyproject.toml", tmp_path)
    (folder / "test_small.py").write_text(SUITE)
    inner = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "3", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**inner, "THRESHER_CI": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 GPU tests left out: torch sees no CUDA device" in done.stdout
    assert "the test left processes running: ['sleep 98765 ']" in done.stdout
    assert "the test changed the environment: {'LEFT'}" in done.stdout
    assert "skipped in CI, where nothing may be missing" in done.stdout
    assert "crashed while running 'tests/test_small.py::test_that_ends_its_worker'" in done.stdout
    # Two tests pass and fail in their teardown.
    assert "2 failed, 12 passed, 2 errors" in done.stdout
    files = {pid for _, pid, _ in _lines(folder / "file.txt")}
    assert len(files) == 1
    assert [what for what, _, _ in _lines(folder / "order.txt")] == ["slow", "slow", "alone"]
    assert len({first for first, _, _ in _lines(folder / "once.txt")}) == 1
    begin, end = (float(time) for _, _, time in _lines(folder / "alone.txt"))
    slow = _lines(folder / "slow.txt")
    workers = {pid for _, pid, _ in slow}
    assert len(workers) == 2, "slow tests are handed out one by one"
    assert not files & workers, "the worker beyond the number of cores takes quick tests"
    others = [
        float(time)
        for file in ("file", "slow", "once")
        for _, _, time in _lines(folder / f"{file}.txt")
    ]
    assert not [time for time in others if begin < time < end], "a test ran beside one marked alone"
