"""Hosts in network namespaces: they reach each other at the speed of the link, and vanish."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from thresher.errors import ThresherError
from thresher.lab import testbed
from thresher.lab.testbed import Testbed, parse_link

REASON = testbed.unavailable()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=f"no test bed: {REASON}")

SUM = str(Path(__file__).with_name("sum_ranks.py"))


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line]


def _mine() -> list[str]:
    return [name for name in _namespaces() if name.startswith(f"thresher-{os.getpid()}-")]


@pytest.mark.slow  # starts torch on two hosts
@needs_hosts
def test_an_all_reduce_takes_as_long_as_its_link_allows() -> None:
    """1 MB over two hosts crosses each link once either way: 80 ms at 100 Mbit/s."""
    with Testbed(2, "100mbit") as bed:
        ranks = bed.run([sys.executable, SUM], environment={"COUNT": str(250_000)})
    ideal = 1e6 / (100e6 / 8)
    for rank in ranks:
        host, value, seconds = rank.stdout.split()
        assert (host, float(value)) == (f"h{rank.rank}", 2.0)
        # Never faster than the link; the upper bound leaves room for a busy machine.
        assert 0.9 * ideal < float(seconds) < 5 * ideal
    assert _mine() == []


@pytest.mark.slow
@needs_hosts
def test_two_beds_side_by_side() -> None:
    with Testbed(2) as first, Testbed(3, "1gbit") as second:
        assert len(_mine()) == 7
        for bed in (first, second):
            there = bed.run(["ip", "-o", "-4", "addr", "show", "dev", "e0"])
            assert [bed.address(r.rank) in r.stdout for r in there] == [True] * bed.count
        second.set_link("unlimited")
    assert _mine() == []


@pytest.mark.slow
@needs_hosts
def test_nothing_is_left_when_the_block_or_a_rank_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), Testbed(2):
        raise RuntimeError
    assert _mine() == []
    fails = ["sh", "-c", 'if [ "$RANK" = 1 ]; then echo went wrong >&2; exit 1; fi; sleep 60']
    begin = time.monotonic()
    failed = r"(?s)rank 1 of 2 exited with code 1.*went wrong"
    with pytest.raises(ThresherError, match=failed), Testbed(2) as bed:
        bed.run(fails)
    assert time.monotonic() - begin < 30
    pid = tmp_path / "pid"
    crash = f'if [ "$RANK" = 1 ]; then echo $$ >{pid}; kill -SEGV $$; fi; '
    # Rank 0 fails once rank 1 is gone.
    crash += f"until [ -s {pid} ] && ! kill -0 $(cat {pid}) 2>/dev/null; do sleep 0.02; done; "
    crash += "exit 3"
    crashes = ["sh", "-c", crash]
    killed = r"(?s)rank 1 of 2 was killed by signal 11 \(SIGSEGV\).*rank 0 of 2 exited with code 3"
    with pytest.raises(ThresherError, match=killed), Testbed(2) as bed:
        bed.run(crashes)
    with pytest.raises(ThresherError, match="did not end within 1 s"), Testbed(1) as bed:
        bed.run(["sleep", "60"], timeout_s=1)
    assert _mine() == []


@pytest.mark.slow
@needs_hosts
def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    script = (
        "from thresher.lab.testbed import Testbed\n"
        "import time\n"
        "with Testbed(2) as bed:\n"
        "    print(bed.hosts[0], flush=True)\n"
        "    bed.run(['sleep', '300'])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    host = child.stdout.readline().strip()
    time.sleep(0.5)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert host in _namespaces()
    with Testbed(1):
        assert host not in _namespaces()
    assert not [n for n in _namespaces() if n.startswith(f"thresher-{child.pid}-")]


def test_bad_words_are_refused() -> None:
    for link in ("fast", "0gbit", "1gb", "-1mbit"):
        with pytest.raises(ThresherError, match="link must be a rate such as 100mbit"):
            parse_link(link)
    with pytest.raises(ThresherError, match=r"hosts must be in \[1, 8\], got 9"):
        Testbed(9)


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ThresherError, match="need root"), Testbed(2):
        pass
