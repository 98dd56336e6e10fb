"""Hosts of equal speed on a test bed, however many there are.

The hosts share this machine's cores. Each is held to the same share of a core by a control group,
so that a host is as fast beside seven others as alone, as real hosts are; where the system offers
no control groups, the hosts contend, and what is measured says so.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FIRST = Path("/sys/fs/cgroup/cpu")
"""Where the kernel's first version of control groups shows its processor time."""
SECOND = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Where the second version is mounted, alone or beside the first."""
PERIOD_US = 10_000
LEFT = 0.2
"""Of the cores, for the links, the kernel and whatever else runs."""


def fair_share(hosts: int) -> float:
    """The share of a core that each of `hosts` can be sure of."""
    return min(1.0, (1 - LEFT) * (os.cpu_count() or 1) / hosts)


@contextlib.contextmanager
def host_shares(hosts: int, share: float) -> Iterator[list[str] | None]:
    """Control groups that hold each host to `share` of a core; None where there can be none."""
    made: list[Path] = []
    try:
        parent = _parent()
        _remove([group for group in parent.glob("thresher-*-h*") if _stale(group)])
        made = [parent / f"thresher-{os.getpid()}-h{host}" for host in range(hosts)]
        for group in made:
            group.mkdir()
            _hold(group, share)
    except OSError:
        _remove(made)
        yield None
        return
    try:
        # `ip netns exec` mounts a /sys of its own; through this process's root the real one shows.
        yield [f"/proc/{os.getpid()}/root{group}" for group in made]
    finally:
        _remove(made)


def _parent() -> Path:
    """The group to make ours in; an OSError where processor time cannot be held."""
    if (FIRST / "cpu.shares").exists():
        return FIRST
    for root in SECOND:
        listed = root / "cgroup.controllers"
        if listed.exists() and "cpu" in listed.read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root
    raise FileNotFoundError("no control group holds processor time")


def _hold(group: Path, share: float) -> None:
    """Limit `group`, and give it the most weight there is: against the other work of the machine
    a host must get its share when it asks for it."""
    quota = int(PERIOD_US * share)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cpu.weight").write_text("10000")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cpu.shares").write_text("100000")


def enter_share(group: str) -> None:
    """Hold this process to the share of `group`, one of those that `host_shares` gave."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def _stale(group: Path) -> bool:
    """Left by a process that was killed."""
    return not Path(f"/proc/{group.name.split('-')[1]}").exists()


def _remove(groups: list[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
