"""Hosts of equal speed on a test bed, independent of their number.

The hosts share this machine's cores. A control group limits each to the same share of a core, so
that a host is as fast beside seven others as alone. Without control groups the hosts compete for
the cores.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

VERSION_1 = Path("/sys/fs/cgroup/cpu")
"""Mount point of the CPU controller of control groups version 1."""
VERSION_2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
"""Mount points of version 2, alone or beside version 1."""
PERIOD_US = 10_000
RESERVED = 0.2
"""Share of the cores left for links, kernel and other processes."""


def fair_share(hosts: int) -> float:
    """Return the share of a core that each of `hosts` can rely on."""
    return min(1.0, (1 - RESERVED) * (os.cpu_count() or 1) / hosts)


@contextlib.contextmanager
def host_shares(hosts: int, share: float) -> Iterator[list[str] | None]:
    """Create control groups that limit each host to `share` of a core.

    Yields a path for each host, for `enter_share`; None if control groups are not available.
    """
    groups: list[Path] = []
    try:
        parent = _parent()
        owners = {group: group.name.split("-")[1] for group in parent.glob("thresher-*-h*")}
        _remove([group for group, pid in owners.items() if not Path(f"/proc/{pid}").exists()])
        groups = [parent / f"thresher-{os.getpid()}-h{host}" for host in range(hosts)]
        for group in groups:
            group.mkdir()
            _limit(group, share)
    except OSError:
        _remove(groups)
        yield None
        return
    try:
        # `ip netns exec` mounts its own /sys; the original is visible through this process's root.
        yield [f"/proc/{os.getpid()}/root{group}" for group in groups]
    finally:
        _remove(groups)


def _parent() -> Path:
    """Return the group to create ours in; OSError if processor time cannot be limited."""
    if (VERSION_1 / "cpu.shares").exists():
        return VERSION_1
    for root in VERSION_2:
        controllers = root / "cgroup.controllers"
        if controllers.exists() and "cpu" in controllers.read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
            return root
    raise FileNotFoundError("no control group limits processor time")


def _limit(group: Path, share: float) -> None:
    """Limit `group`, and give it the largest weight: it must get its share despite other load."""
    quota = int(PERIOD_US * share)
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        (group / "cpu.weight").write_text("10000")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cpu.shares").write_text("100000")


def enter_share(group: str) -> None:
    """Limit this process to the share of `group`, a path from `host_shares`."""
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))


def _remove(groups: list[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):
            group.rmdir()
