"""Several hosts on one machine: network namespaces joined by a bridge, with links of a given speed.

    with Testbed(4, "1gbit") as bed:
        ranks = bed.run([sys.executable, "-m", "thresher", "train", …])

Each host is a namespace with one interface, `e0`; a token bucket filter (`tbf`) limits it in both
directions, like a full-duplex cable and a switch port. The bridge has a namespace of its own, so
the machine's network is unchanged and several test beds can run at once with the same addresses.
The hosts share the machine's cores and disks: a test bed measures the network. Needs root and
Linux's `ip` and `tc` (Debian: iproute2).
"""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from thresher.distributed.local_group import RankOutput, RankPlacement, Rendezvous, run_ranks
from thresher.distributed.worker import call_in_group
from thresher.errors import InvalidValueError, ThresherError

MOST_HOSTS = 8
PORT = 29400
TIMEOUT_S = 600.0
_NAME = re.compile(r"^thresher-(\d+)-\d+-(?:switch|h\d+)$")
_serial = itertools.count()


def unavailable() -> str | None:
    """Return why a test bed cannot run on this machine; None if it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} is missing (Debian: iproute2)"
    probe = f"thresher-{os.getpid()}-{next(_serial)}-switch"
    added = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if added.returncode:
        return f"the kernel refuses network namespaces ({added.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


def parse_link(link: str | None) -> str | None:
    """Check a rate of `tc` (100mbit, 1gbit); return None for None and "unlimited"."""
    if link is None or link == "unlimited":
        return None
    if not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", link) or float(link[:-4]) == 0:
        raise InvalidValueError(
            f'link must be a rate such as 100mbit or 1gbit, or unlimited, got "{link}"', "", "link"
        )
    return link


class Testbed:
    """A context manager that creates 1 to 8 hosts, with links such as "1gbit" (None: no limit).

    They are removed at the end; what a killed process left, when the next test bed starts.
    """

    __test__ = False  # not a pytest class

    def __init__(self, hosts: int, link: str | None = None) -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise InvalidValueError(f"hosts must be in [1, {MOST_HOSTS}], got {hosts}", "", "hosts")
        self.count, self.link = hosts, link
        parse_link(link)
        prefix = f"thresher-{os.getpid()}-{next(_serial)}"
        self._switch = f"{prefix}-switch"
        self.hosts = [f"{prefix}-h{i}" for i in range(hosts)]

    def __enter__(self) -> "Testbed":
        reason = unavailable()
        if reason is not None:
            raise ThresherError(f"a test bed of hosts is not available: {reason}")
        remove_stale()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for i, host in enumerate(self.hosts):
            _ip("netns", "add", host)
            peer = ("peer", "name", f"p{i}", "netns", self._switch)
            _ip("link", "add", "e0", "netns", host, "type", "veth", *peer)
            _ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", "e0")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "e0", "up")
            _ip("-n", self._switch, "link", "set", f"p{i}", "master", "br0", "up")
        if parse_link(self.link) is not None:
            self.set_link(self.link)

    def set_link(self, link: str | None) -> None:
        """Change the speed of every link in both directions."""
        rate = parse_link(link)
        self.link = link
        for i, host in enumerate(self.hosts):
            for namespace, device in ((host, "e0"), (self._switch, f"p{i}")):
                words, target = ("tc", "-n", namespace, "qdisc"), ("dev", device, "root")
                if rate is None:
                    _call(*words, "del", *target, may_fail=True)
                    continue
                # 64 kB hold the largest packet that the kernel passes down in one piece.
                limits = ("rate", rate, "burst", "64kb", "latency", "50ms")
                _call(*words, "replace", *target, "tbf", *limits)

    @staticmethod
    def address(host: int) -> str:
        """Return the IP address of a host."""
        return f"10.77.0.{host + 1}"

    def run(
        self,
        argv: Sequence[str],
        hosts: int | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> list[RankOutput]:
        """Run `argv` with a rank on each of the first `hosts` hosts; see `run_ranks`."""
        ranks = [
            RankPlacement(rank, rank, 0, 1, f"h{rank}", ("ip", "netns", "exec", host))
            for rank, host in enumerate(self.hosts[: hosts or self.count])
        ]
        rendezvous = Rendezvous(self.address(0), PORT, "e0")
        return run_ranks(ranks, argv, rendezvous, environment, timeout_s)

    def call(
        self, target: str, order: Any, hosts: int | None = None, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Call a function on the first `hosts` hosts: see `call_in_group`."""
        run = partial(self.run, hosts=hosts, timeout_s=timeout_s)
        return call_in_group(target, order, run)

    def close(self) -> None:
        """Remove the hosts and kill the processes that still run on them."""
        for namespace in (*self.hosts, self._switch):
            _remove(namespace)


def remove_stale() -> list[str]:
    """Remove the namespaces of test beds whose process is gone; return their names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    stale = []
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        match = _NAME.match(name)
        if match and not Path(f"/proc/{match.group(1)}").exists():
            _remove(name)
            stale.append(name)
    return stale


def _remove(namespace: str) -> None:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _ip(*words: str) -> None:
    _call("ip", *words)


def _call(*words: str, may_fail: bool = False) -> None:
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode and not may_fail:
        raise ThresherError(f"`{' '.join(words)}` failed: {result.stderr.strip()}")
