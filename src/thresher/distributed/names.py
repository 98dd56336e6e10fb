"""Names of compressions, all-reduce algorithms and engines; no torch, so that `--help` is quick.

What compressions send is here, too: training and its prediction must mean the same.
"""

from typing import Literal

Compress = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
AllReduce = Literal["default", "ring", "hierarchical", "torus"]
Engine = Literal["ddp", "horovod"]
TOPK_SHARE = 0.01
"""Share of the elements that `topk` sends."""
POWERSGD_RANK = 2
"""Rank of the factors that `powersgd` sends."""
