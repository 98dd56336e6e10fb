"""The fork server of the tests has loaded what its children are to start with."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forks import FORKS, SERVER
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
