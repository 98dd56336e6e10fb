"""Options that the comparisons of engines and of scaling rules share."""

from dataclasses import dataclass
from pathlib import Path

from thresher.distributed.names import Compress
from thresher.lab.testbed import MOST_HOSTS
from thresher.options import option

FIGURE = "compare.png"
RESULT = "compare.json"


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """Options of `compare_engines` and `compare_rules`."""

    hosts: int | None = option(None, ge=1, le=MOST_HOSTS)
    """Run on this many hosts of a test bed in network namespaces (needs root)."""
    link: str = option("1gbit", only_with={"hosts": True})
    """Speed of each host's link: 100mbit, 1gbit, unlimited …"""
    models: tuple[str, ...] | None = None
    """Networks (default: alexnet-small, and googlenet-small too for scaling rules); engines are
    compared with one."""
    batch_size: int = option(32, ge=1)
    """Batch of each worker (strong scaling: the global batch)."""
    compress: tuple[Compress, ...] | None = None
    """Compressions of gradients, see `thresher train --help` (default: none, and int8 too for
    scaling rules); engines are compared with one."""
    out: Path | None = None
    """Folder for compare.json, compare.png and unfinished work, from which the same command
    resumes."""
