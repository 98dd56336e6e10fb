"""A program that trains and embeds on a pretended device, and prints what came out as JSON.

The device keeps its tensors on the CPU. Like Apple's, it lacks float64, and mixing its tensors with
those of the CPU is an error. A device that was registered stays for the life of a process, so this
is a program of its own: `python other_device.py FOLDER`.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from thresher import RunResult, TrainConfig, train
from thresher.data.pack import Pack
from thresher.distributed import group
from thresher.errors import ThresherError
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig

CPU, NAME = torch.device("cpu"), "pretended"
WRONG: set[str] = set()
"""Operations whose results are wrong on the device."""


class DeviceModule:
    """What torch asks of `torch.pretended`."""

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        """Random numbers are those of the CPU."""

    manual_seed_all = manual_seed

    def empty_cache(self) -> None:
        """Nothing is cached."""


class Held(torch.Tensor):
    """A tensor of the device; `held` is the same on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Held":
        if held.dtype == torch.float64:
            raise TypeError("the pretended device lacks float64")
        made: Held = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(op, args, kwargs or {})


class Pretending(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(op, args, kwargs or {})


def leaves_of(value: Any) -> list[Any]:
    """Return what lists and tuples hold."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the same lists and tuples of changed values."""
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, item) for item in value)
    return change(value)


def run(op: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on the CPU, and return tensors of the device if it is one of the device."""
    leaves, name = leaves_of([*args, *kwargs.values()]), op.name()
    devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    held = {id(leaf.held): leaf for leaf in leaves if isinstance(leaf, Held)}
    there = devices[0].type == NAME if devices else bool(held)
    if name == "aten::copy_":
        there = isinstance(args[0], Held)
    elif held and name != "aten::_to_copy":
        others = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if not all(isinstance(other, Held) for other in others):
            raise RuntimeError(f"{name} on tensors of two devices")

    def down(value: Any) -> Any:
        if isinstance(value, torch.device):
            return CPU
        return value.held if isinstance(value, Held) else value

    def up(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        known = held.get(id(value))
        if known is not None:  # it was changed in place, or moved away
            return known if there else value.clone()
        moved = any(value is leaf for leaf in leaves)
        return Held(value.clone() if moved else value) if there else value

    below = mapped(down, args)
    result = op(*below, **{key: mapped(down, value) for key, value in kwargs.items()})
    if there and name in WRONG:
        for leaf in leaves_of([result, below] if name.endswith("_") else result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaf.mul_(1.5)
    return mapped(up, result)


@contextmanager
def wrong(name: str) -> Iterator[None]:
    WRONG.add(name)
    yield
    WRONG.clear()


def trained(device: str, out: str, **options: Any) -> RunResult:
    made = {"data": "digits", "model": "tiny", "batch_size": 128, "epochs": 1, **options}
    return train(TrainConfig(device=device, out=out, **made), quiet=True)  # type: ignore[arg-type]


def refused(**options: Any) -> str:
    try:
        trained("mps", "refused", **options)
    except ThresherError as error:
        return str(error)
    return ""


def features(device: Any, out: str) -> np.ndarray:
    config = EmbedConfig(run=Path("cpu-first"), device=device, batch_size=256, dtype="float32")
    return np.array(embed_pack(config, Pack.open("digits"), out).array[:50])


def main() -> None:
    module = DeviceModule()
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    choose = group.choose_device
    group.choose_device = lambda name="auto": (
        torch.device(NAME, 0) if name == "mps" else choose(name)
    )
    os.chdir(sys.argv[1])
    lamb = {"optimizer": "lamb", "noise_scale": True, "views": "shift", "micro_batch": "auto"}
    settings: dict[str, dict[str, Any]] = {
        "first": {**lamb, "epochs": 0.5, "keep_checkpoint": True},
        "branch": {**lamb, "epochs": 1},
        "pruned": {"optimizer": "muon", "dynamic": "random:0.5", "record_dynamics": True},
    }
    answer: dict[str, Any] = {}
    for device in ("cpu", "mps"):
        with Pretending() if device == "mps" else nullcontext():
            for name, options in settings.items():
                branch = {"branch_from": f"{device}-first"} if name == "branch" else {}
                result = trained(device, f"{device}-{name}", **options, **branch)
                values = [result.accuracy, result.loss, result.noise_scale or 0, result.steps]
                answer.setdefault(name, []).append(values)
            answer.setdefault("features", []).append(features(device, f"{device}-F").tolist())
    with Pretending():
        with wrong("aten::native_batch_norm_backward"):
            answer["gradients"] = refused()
        with wrong("aten::_fused_sgd_"):
            answer["updates"] = refused()
        with wrong("aten::convolution"):
            try:
                features("mps", "refused-features")
            except ThresherError as error:
                answer["wrong features"] = str(error)
        answer["half"] = refused(precision="bf16")
        os.environ |= {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        answer["workers"] = refused()
    answer["left"] = sorted(str(path) for path in Path().glob("refused*"))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
