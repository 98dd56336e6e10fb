"""Names of compressions, all-reduce algorithms and engines; no torch, so that `--help` is quick."""

from typing import Literal

Compress = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
AllReduce = Literal["default", "ring", "hierarchical", "torus"]
Engine = Literal["ddp", "horovod"]
