"""Thresher: data-optimised large-batch distributed training.

The names below are the Python API; they are imported on first use, so that `import thresher`
costs milliseconds and does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from thresher.version import __version__

if TYPE_CHECKING:
    from thresher.data.pack import Pack as Pack
    from thresher.data.selection import Selection as Selection
    from thresher.errors import ThresherError as ThresherError
    from thresher.models.features import Features as Features
    from thresher.select.filters.network import NetworkFilter as NetworkFilter
    from thresher.study.study import Study as Study
    from thresher.training.config import TrainConfig as TrainConfig
    from thresher.training.result import RunResult as RunResult
    from thresher.training.train import train as train

_WHERE = {
    "Features": "thresher.models.features",
    "NetworkFilter": "thresher.select.filters.network",
    "Pack": "thresher.data.pack",
    "RunResult": "thresher.training.result",
    "Selection": "thresher.data.selection",
    "Study": "thresher.study.study",
    "ThresherError": "thresher.errors",
    "TrainConfig": "thresher.training.config",
    "train": "thresher.training.train",
}

__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'thresher' has no attribute {name!r}")
