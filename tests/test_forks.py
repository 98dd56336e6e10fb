"""The fork server of the tests has loaded what its children are to start with."""

import json
import os
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from execnet import gateway_io

from forks import FORKS, FRESH, SERVER, SESSION, WORKER, forks_in
from leaks import _is_ours


def _loaded(found: Any) -> None:
    found.put(set(sys.modules))


def test_the_server_has_loaded_every_module() -> None:
    """It ignores modules that it does not find: commands would only be slower."""
    found = FORKS.Queue()
    child = FORKS.Process(target=_loaded, args=(found,))
    child.start()
    loaded = found.get(timeout=120)
    child.join()
    assert set(SERVER._preload_modules) <= loaded


def test_workers_of_pytest_are_forks() -> None:
    assert gateway_io.popen_bootstrapline == WORKER[1]
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert forkserver.get_inherited_fds() is not None


_STATE = """
import json, os, signal, sys, warnings
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
files = {fd: f"/proc/self/fd/{fd}" for fd in range(200)}  # the fork server's own are above
state = {
    "process": {name: status[name] for name in ("Umask", "SigBlk", "SigIgn", "CapEff")},
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "limits": open("/proc/self/limits").read(),
    "files": {fd: os.readlink(file) for fd, file in files.items() if os.path.exists(file)},
    "folder": os.getcwd(),
    "groups": [os.getpgid(0), os.getsid(0), os.getppid()],
    "nice": os.nice(0),
    "words": sys.argv,
    "environment": {k: v for k, v in os.environ.items() if k != "THRESHER_TEST_FRESH"},
    "warnings": list(map(str, warnings.filters)),
}
sys.stdout.write(json.dumps(state))
"""


def test_a_forked_worker_of_pytest_is_as_a_fresh_one(tmp_path: Path) -> None:
    states = []
    for fresh in ({}, {FRESH: "1"}):
        with subprocess.Popen(
            [sys.executable, "-u", *WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **fresh},
        ) as worker:
            said = worker.communicate(f"{_STATE!r}\n", timeout=60)[0]
        assert worker.returncode == 0
        states.append(json.loads(said))
        for fd in (0, 1):
            assert states[-1]["files"].pop(str(fd)).startswith("pipe:")
    assert states[0] == states[1]


def test_a_worker_of_pytest_is_no_process_of_a_test(tmp_path: Path) -> None:
    """Tests kill what works in their folder: this must not be a worker of pytest."""
    session = {SESSION: "1"}  # of the process that starts the workers
    words = [sys.executable, "-u", *WORKER]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path, env={**os.environ, **session}
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write("'print(1, flush=True); sys.stdin.read()'\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "1\n"
        assert os.readlink(f"/proc/{worker.pid}/cwd") == str(tmp_path)
        sleep = Path(__file__).parent / "sleeps.py"
        command = subprocess.Popen([sys.executable, sleep], stdout=pipe, text=True, cwd=tmp_path)
        assert command.stdout
        child = int(command.stdout.readline())
        found = forks_in(tmp_path)
        command.kill()
        command.communicate()
        worker.communicate()
        assert sorted(found) == sorted([command.pid, child])
    assert worker.returncode == 0


def test_a_fork_leads_its_session_at_once() -> None:
    """Who kills the group of a process that has just started must not kill the fork server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", "--version"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert os.getpgid(process.pid) == process.pid
    assert process.wait(60) == 0


def test_forks_are_found_if_they_are_left_behind() -> None:
    """Their parent is the server, which belongs to no worker of pytest."""
    sleep = Path(__file__).parent / "sleeps.py"
    command = subprocess.Popen([sys.executable, sleep], stdout=subprocess.PIPE, text=True)
    process = FORKS.Process(target=time.sleep, args=(60,))
    process.start()
    try:
        assert command.stdout
        child = int(command.stdout.readline())
        assert process.pid
        assert [_is_ours(pid) for pid in (command.pid, process.pid, child)] == [True] * 3
    finally:
        command.kill()  # the child of a fork ends with its parent
        process.kill()
        command.communicate()
        process.join()
