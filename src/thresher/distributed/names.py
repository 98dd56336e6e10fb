"""Names of compressions, all-reduce algorithms and engines; no torch, so that `--help` is quick.

What compressions send is here, too: training and its prediction must mean the same.
"""

from typing import Literal

from thresher.errors import InvalidValueError

Compress = Literal["none", "fp16", "bf16", "int8", "powersgd", "topk"]
AllReduce = Literal["default", "ring", "hierarchical", "torus"]
Engine = Literal["ddp", "horovod"]
TOPK_SHARE = 0.01
"""Share of the elements that `topk` sends."""
POWERSGD_RANK = 2
"""Rank of the factors that `powersgd` sends."""


def check_compress(compress: str, allreduce: str = "default", engine: str = "ddp") -> None:
    """Raise InvalidValueError unless what is compressed so can be summed so."""
    if allreduce != "default" and compress not in ("none", "fp16", "bf16"):
        raise InvalidValueError(
            f"`compress` {compress} does not work with `allreduce` {allreduce}",
            "use the default all-reduce, or compress none, fp16 or bf16",
        )
    if engine == "horovod" and compress not in ("none", "fp16"):
        what = f"`compress` {compress} does not work with engine horovod"
        raise InvalidValueError(what, "use none or fp16")
