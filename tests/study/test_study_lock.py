"""One process per study folder; the error of a second one names the first."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.errors import ThresherError
from thresher.study.status import hold, holder

HOLD = """
import sys, time
from pathlib import Path
from thresher.study.status import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_is_told_who_holds_it_and_a_kill_frees_it(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        said = f"run by process {first.pid} on {socket.gethostname()}"
        with pytest.raises(ThresherError, match=said), hold(tmp_path):
            pass
        found = holder(tmp_path)
        assert found is not None
        assert found.pid == first.pid
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert holder(tmp_path) is None
    with hold(tmp_path):
        found = holder(tmp_path)
        assert found is not None
        assert found.pid == os.getpid()


def test_nobody_holds_what_was_never_run(tmp_path: Path) -> None:
    assert holder(tmp_path / "nothing") is None
