"""Thresher: data-optimised large-batch distributed training.

The names below are the Python API; they are imported on first use, so that `import thresher`
costs milliseconds and does not load torch.
"""

import importlib

from thresher.version import __version__

TYPE_CHECKING = False  # as in typing, whose import takes longer than that of all of the above
if TYPE_CHECKING:
    from typing import Any

    from thresher.auditing.audit import audit as audit
    from thresher.auditing.config import AuditConfig as AuditConfig
    from thresher.auditing.findings import Audit as Audit
    from thresher.data.pack import Pack as Pack
    from thresher.data.selection import Selection as Selection
    from thresher.data.write import write_pack as write_pack
    from thresher.errors import ThresherError as ThresherError
    from thresher.models.features import Features as Features
    from thresher.report.page import write_report as write_report
    from thresher.select.filters.combine import IntersectionFilter as IntersectionFilter
    from thresher.select.filters.combine import UnionFilter as UnionFilter
    from thresher.select.filters.combine import VoteFilter as VoteFilter
    from thresher.select.filters.coverage import CoverageFilter as CoverageFilter
    from thresher.select.filters.dynamics import AUMFilter as AUMFilter
    from thresher.select.filters.dynamics import EL2NFilter as EL2NFilter
    from thresher.select.filters.dynamics import ForgettingFilter as ForgettingFilter
    from thresher.select.filters.dynamics import UncertaintyFilter as UncertaintyFilter
    from thresher.select.filters.grid import GridFilter as GridFilter
    from thresher.select.filters.knn import KNNFilter as KNNFilter
    from thresher.select.filters.label_errors import LabelErrorsFilter as LabelErrorsFilter
    from thresher.select.filters.listed import ListFilter as ListFilter
    from thresher.select.filters.moderate import ModerateFilter as ModerateFilter
    from thresher.select.filters.near_duplicates import NearDuplicatesFilter as NearDuplicatesFilter
    from thresher.select.filters.network import NetworkFilter as NetworkFilter
    from thresher.select.filters.outliers import OutliersFilter as OutliersFilter
    from thresher.select.filters.prototypes import PrototypesFilter as PrototypesFilter
    from thresher.select.filters.random import RandomFilter as RandomFilter
    from thresher.select.filters.recursive import RecursiveFilter as RecursiveFilter
    from thresher.study.analysis import analyse as analyse
    from thresher.study.reported import report_result as report_result
    from thresher.study.study import Study as Study
    from thresher.training.config import TrainConfig as TrainConfig
    from thresher.training.noise_scale import NoiseScale as NoiseScale
    from thresher.training.prune import prune as prune
    from thresher.training.result import RunResult as RunResult
    from thresher.training.train import train as train

_MODULES = {
    "AUMFilter": "thresher.select.filters.dynamics",
    "Audit": "thresher.auditing.findings",
    "AuditConfig": "thresher.auditing.config",
    "CoverageFilter": "thresher.select.filters.coverage",
    "EL2NFilter": "thresher.select.filters.dynamics",
    "Features": "thresher.models.features",
    "ForgettingFilter": "thresher.select.filters.dynamics",
    "GridFilter": "thresher.select.filters.grid",
    "IntersectionFilter": "thresher.select.filters.combine",
    "KNNFilter": "thresher.select.filters.knn",
    "LabelErrorsFilter": "thresher.select.filters.label_errors",
    "ListFilter": "thresher.select.filters.listed",
    "ModerateFilter": "thresher.select.filters.moderate",
    "NearDuplicatesFilter": "thresher.select.filters.near_duplicates",
    "NetworkFilter": "thresher.select.filters.network",
    "NoiseScale": "thresher.training.noise_scale",
    "OutliersFilter": "thresher.select.filters.outliers",
    "Pack": "thresher.data.pack",
    "PrototypesFilter": "thresher.select.filters.prototypes",
    "RandomFilter": "thresher.select.filters.random",
    "RecursiveFilter": "thresher.select.filters.recursive",
    "RunResult": "thresher.training.result",
    "Selection": "thresher.data.selection",
    "Study": "thresher.study.study",
    "ThresherError": "thresher.errors",
    "TrainConfig": "thresher.training.config",
    "UncertaintyFilter": "thresher.select.filters.dynamics",
    "UnionFilter": "thresher.select.filters.combine",
    "VoteFilter": "thresher.select.filters.combine",
    "analyse": "thresher.study.analysis",
    "audit": "thresher.auditing.audit",
    "prune": "thresher.training.prune",
    "report_result": "thresher.study.reported",
    "train": "thresher.training.train",
    "write_pack": "thresher.data.write",
    "write_report": "thresher.report.page",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> "Any":
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'thresher' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
