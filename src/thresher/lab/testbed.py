"""Several hosts on one machine: network namespaces joined by a bridge, with links of a given speed.

    with Testbed(4, "1gbit") as bed:
        ranks = bed.run([sys.executable, "-m", "thresher", "train", …])

Each host is a namespace with one interface, `e0`; a token bucket (`tbf`) limits it in both
directions, as a full-duplex cable and a switch port would. The bridge stands in a namespace of its
own, so nothing is added to the machine's own network and any number of test beds can live side by
side, all with the same addresses. The hosts share the machine's cores and disks: what this
measures is the network. Needs root and Linux's `ip` and `tc` (Debian: iproute2).
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from thresher.errors import ThresherError
from thresher.lab.ranks import Finished, Rank, run_ranks

MOST = 8
PORT = 29400
_NAME = re.compile(r"^thresher-(\d+)-\d+-(?:switch|h\d+)$")
_serial = itertools.count()


def why_not() -> str | None:
    """Why there can be no test bed here; None: there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} is missing (Debian: iproute2)"
    probe = f"thresher-{os.getpid()}-{next(_serial)}-switch"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"the kernel makes no network namespace ({made.stderr.strip()})"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


def parse_link(link: str | None) -> str | None:
    """A rate as `tc` writes it (100mbit, 1gbit); None and "unlimited" set no limit."""
    if link is None or link == "unlimited":
        return None
    if not re.fullmatch(r"\d+(\.\d+)?[kmg]bit", link) or float(link[:-4]) == 0:
        raise ThresherError(f'"{link}" is no speed of a link', "write 100mbit, 1gbit or unlimited")
    return link


def link_bytes_per_s(link: str | None) -> float:
    """Bytes per second of `link`; infinite where there is no limit."""
    rate = parse_link(link)
    if rate is None:
        return float("inf")
    return float(rate[:-4]) * {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]] / 8


class Testbed:
    """A context manager; `hosts` of 1 to 8. Whatever happens inside, nothing is left behind.

    What a killed process left is removed when the next test bed starts.
    """

    __test__ = False  # pytest must not take it for a test

    def __init__(self, hosts: int, link: str | None = None) -> None:
        if not 1 <= hosts <= MOST:
            raise ThresherError(f"a test bed of {hosts} hosts", f"choose 1 to {MOST}")
        self.count, self.link = hosts, link
        parse_link(link)
        prefix = f"thresher-{os.getpid()}-{next(_serial)}"
        self._switch = f"{prefix}-switch"
        self.hosts = [f"{prefix}-h{i}" for i in range(hosts)]

    def __enter__(self) -> "Testbed":
        reason = why_not()
        if reason is not None:
            raise ThresherError(f"there can be no test bed of hosts here: {reason}")
        sweep()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Change the speed of every link, both ways."""
        rate = parse_link(link)
        self.link = link
        for i, host in enumerate(self.hosts):
            for namespace, device in ((host, "e0"), (self._switch, f"p{i}")):
                where = ("dev", device, "root")
                if rate is None:
                    _tc(namespace, "qdisc", "del", *where, may_fail=True)
                    continue
                # A bucket of 64 kB holds the largest packet the kernel passes down in one piece.
                limits = ("rate", rate, "burst", "64kb", "latency", "50ms")
                _tc(namespace, "qdisc", "replace", *where, "tbf", *limits)

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def run(
        self,
        argv: Sequence[str],
        hosts: int | None = None,
        per_host: int = 1,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
    ) -> list[Finished]:
        """Run `argv` as one process group over the first `hosts` hosts, torchrun's variables set.

        See `ranks.run_ranks` for what happens when one fails.
        """
        used = self.hosts[: hosts or self.count]
        ranks = [
            Rank(rank, host, local, per_host, f"h{host}", ("ip", "netns", "exec", used[host]))
            for rank, (host, local) in enumerate(
                divmod(rank, per_host) for rank in range(len(used) * per_host)
            )
        ]
        return run_ranks(ranks, argv, self.address(0), PORT, "e0", environment, timeout_s)

    def close(self) -> None:
        """Remove the hosts and whatever still runs on them."""
        for namespace in (*self.hosts, self._switch):
            _remove(namespace)


def run_on_hosts(
    count: int,
    argv: Sequence[str],
    link: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> list[Finished]:
    """Run `argv` as `count` ranks, each on a host of its own."""
    with Testbed(count, link) as bed:
        return bed.run(argv, environment=environment, timeout_s=timeout_s)


def sweep() -> list[str]:
    """Remove the namespaces of test beds whose process is gone; their names."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    stale = []
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        match = _NAME.match(name)
        if match and not Path(f"/proc/{match.group(1)}").exists():
            _remove(name)
            stale.append(name)
    return stale


def _remove(namespace: str) -> None:
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
    for pid in found.stdout.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def _ip(*words: str) -> None:
    _call("ip", *words)


def _tc(namespace: str, *words: str, may_fail: bool = False) -> None:
    _call("tc", "-n", namespace, *words, may_fail=may_fail)


def _call(*words: str, may_fail: bool = False) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode and not may_fail:
        raise ThresherError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")
