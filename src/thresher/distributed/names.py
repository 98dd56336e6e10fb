"""The words a user may say about communication; no torch here, so that `--help` stays quick."""

from typing import Literal

Compress = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
AllReduce = Literal["default", "ring", "hierarchical", "torus"]
Engine = Literal["ddp", "horovod"]
