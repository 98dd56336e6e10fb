"""Hosts held to a share of a core."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.lab.shares import fair_share, host_shares

BUSY = """
import sys, time
from thresher.lab.shares import enter_share
enter_share(sys.argv[1])
begin, used = time.monotonic(), time.process_time()
while time.monotonic() - begin < 2:
    pass
print((time.process_time() - used) / (time.monotonic() - begin))
"""


@pytest.mark.slow
def test_a_busy_host_gets_its_share_and_no_more() -> None:
    with host_shares(2, 0.25) as groups:
        if groups is None:
            pytest.skip("there are no control groups for processor time here")
        (kept,) = {Path(group).parent for group in groups}
        ran = subprocess.run(
            [sys.executable, "-c", BUSY, groups[1]], capture_output=True, text=True, check=True
        )
        assert 0.1 < float(ran.stdout) < 0.35
    assert not list(kept.glob(f"thresher-{os.getpid()}-h*"))


def test_what_a_killed_process_left_is_removed() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with host_shares(1, 0.5) as groups:
        if groups is None:
            pytest.skip("there are no control groups for processor time here")
        left = Path(groups[0]).parent / f"thresher-{gone.pid}-h0"
    left.mkdir()
    with host_shares(1, 0.5):
        assert not left.exists()


def test_all_hosts_together_leave_something_of_the_cores() -> None:
    cores = os.cpu_count() or 1
    assert fair_share(4 * cores) == pytest.approx(0.2)
    assert fair_share(1) <= 1.0
