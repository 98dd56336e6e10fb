"""Real processes without the seconds that torch takes to load.

A fork server imports torch once for each worker of pytest; processes that tests start through it
are forked from there in tens of milliseconds. Python has one fork server per process, which imports
what the last caller asked for: so it is set up here and nowhere else.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch._dynamo",  # which DDP and optimizers load
        "pyarrow.parquet",
        "pytest",
        "tyro",
        "thresher.cli.main",
        "thresher.distributed.hooks",
        "thresher.models.batch_norm",
        "thresher.training.train",
        "thresher.study.analysis",
        "thresher.select.run",
        "sklearn.cluster",
        "openTSNE",
        "matplotlib.figure",
    ]
)


def run_thresher(
    arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float
) -> "subprocess.CompletedProcess[str]":
    """Run `python -m thresher` in a process of its own, as subprocess.run does."""
    command = ["thresher", *arguments]
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / "stdout", Path(folder) / "stderr"]
        process = FORKS.Process(
            target=_thresher, args=(command, dict(environment), os.getcwd(), streams)
        )
        process.start()
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout_s)
        out, err = (stream.read_text() for stream in streams)
    return subprocess.CompletedProcess(command, process.exitcode or 0, out, err)


def _thresher(
    command: list[str], environment: dict[str, str], folder: str, streams: list[Path]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, stream in enumerate(streams, 1):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # The folders of a new interpreter: not those that pytest has added for the tests.
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [folder, *added, *installed]
    sys.argv[:] = command
    runpy.run_module("thresher", run_name="__main__", alter_sys=True)
