"""The fork server of the tests has loaded what its children are to start with."""

import os
import subprocess
import sys
from typing import Any

from forks import FORKS, SERVER


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
