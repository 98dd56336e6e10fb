"""Checkpoints: one safetensors file each, renamed into place, verified when read.

Tensors are stored by name; everything else is JSON in the file's header, with a checksum of the
tensors. Two are kept: a truncated or damaged file is skipped, and the one before it is used.
"""

import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from thresher.device_check import host_of
from thresher.distributed.exchange import part
from thresher.errors import ThresherError
from thresher.paths import atomic_file
from thresher.read_errors import unreadable

KEEP = 2
logger = logging.getLogger(__name__)
PATTERN = "step-*.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    meta: Mapping[str, Any]
    """JSON values."""
    tensors: dict[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with `prefix.`, without the prefix."""
        return part(self.tensors, prefix)


def write(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and remove all but the newest two; needs the state's memory twice."""
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in checkpoint.tensors.items()
    }
    header = {"state": json.dumps(checkpoint.meta), "crc": str(_checksum(tensors))}
    data = save(tensors, metadata=header)
    target = folder / f"step-{step:010d}.safetensors"
    # Written by Python, not by safetensors: a full disk is then an OSError with a clear message.
    with atomic_file(target) as temporary:
        temporary.write_bytes(data)
    for old in sorted(folder.glob(PATTERN))[:-KEEP]:
        old.unlink(missing_ok=True)
    return target


def newest(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint; None if there is none, an error if all are damaged."""
    damaged: list[Path] = []
    for path in sorted(folder.glob(PATTERN), reverse=True):
        checkpoint = read(path)
        if checkpoint is not None:
            if damaged:
                logger.warning("using %s; damaged: %s", path, ", ".join(map(str, damaged)))
            return checkpoint
        damaged.append(path)
    if damaged:
        raise ThresherError(
            f"no checkpoint in {folder} is intact: {', '.join(path.name for path in damaged)}",
            "remove them to start from the beginning",
        )
    return None


def read(path: Path) -> Checkpoint | None:
    """Read a checkpoint; return None if the file is truncated or damaged.

    Raises:
        UnreadableError: The system refused to read it: an older one would repeat steps.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if int(header["crc"]) != _checksum(tensors):
            return None
        return Checkpoint(json.loads(header["state"]), tensors)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if refused := unreadable(path, error):
            raise refused from None
        return None


def _checksum(tensors: dict[str, Tensor]) -> int:
    crc = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().flatten().view(torch.uint8)
        crc = zlib.crc32(flat.numpy().data, zlib.crc32(name.encode(), crc))
    return crc


def pack_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Return an optimizer's state as named tensors, and as JSON what is not a tensor."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, object] = {}
    for index, values in optimizer.state_dict()["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            elif value is not None:
                plain[f"{index}.{key}"] = value
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            # Such as a step count; the rate is set at every step anyway.
            if isinstance(value, Tensor) and key != "lr":
                tensors[f"optimizer_group.{index}.{key}"] = value
    return tensors, plain


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, checkpoint: Checkpoint, plain: Mapping[str, object]
) -> None:
    """Restore what `pack_optimizer` returned; rates and flags stay those of this run."""
    state: dict[int, dict[str, object]] = {}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for name, value in {**checkpoint.part("optimizer"), **plain}.items():
        index, _, key = name.partition(".")
        parameter = parameters[int(index)]
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            # Fused updates need a momentum in its parameter's layout (channels last); a file
            # holds it contiguously.
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for name, value in checkpoint.part("optimizer_group").items():
        index, _, key = name.partition(".")
        group = optimizer.param_groups[int(index)]
        group[key] = value.to(host_of(group["params"][0].device))
