"""What the fork server imports before it forks; see `forks`."""

import gc
import importlib
import warnings

from cheap_memory import RARELY, use_huge_pages

MODULES = (
    "torch._dynamo",  # which DDP loads
    "torch.distributed.run",
    "quick_agent",
    "pyarrow.parquet",
    "pytest",
    "tyro",
    "thresher.cli.main",
    "parsed_commands",
    "quick_network",
    "thresher.distributed.hooks",
    "thresher.distributed.worker",
    "thresher.models.batch_norm",
    "thresher.training.train",
    "thresher.study.analysis",
    "thresher.study.perform",
    "thresher.select.run",
    "sklearn.cluster",
    "openTSNE",
    "matplotlib.figure",
)

WARNINGS = warnings.filters[:]
"""What Python shows of warnings, before torch and others add to it."""

gc.disable()  # a second of the seven that this takes
for module in MODULES:
    importlib.import_module(module)
gc.enable()
gc.freeze()
gc.set_threshold(*RARELY)
use_huge_pages()
