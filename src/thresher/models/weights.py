"""Weights in files: safetensors, or a state dict that torch loads without running code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thresher.errors import ThresherError
from thresher.models.head import find_head
from thresher.paths import atomic_file

# What training scripts wrap a state dict in, and what wrappers of a model put before its names.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")


def save(model: nn.Module, file: Path) -> None:
    """Write the model's state as safetensors, whole or not at all; costs one copy in memory."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous().clone() for name, t in unwrapped(model).items()}
    with atomic_file(file) as temporary:
        save_file(state, temporary)


def unwrapped(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict, by the names it has without DDP's or the compiler's prefix."""
    return {_bare(name): tensor for name, tensor in model.state_dict().items()}


def read(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU."""
    if not file.is_file():
        raise ThresherError(f"there are no weights at {file}", "check the path")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state: Any = load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise ThresherError(f"{file} is not a whole safetensors file ({error})") from None
    else:
        state = _read_torch(file)
    return {_bare(name): tensor for name, tensor in state.items()}


def load_into(model: nn.Module, file: Path, name: str = "the model") -> list[str]:
    """Load `file` into `model`, whose names and shapes must agree with it.

    The head's tensors are left as they are where only the number of classes differs; their names
    are returned. Every other difference is refused, and the model is then unchanged.
    """
    state = read(file)
    wanted = unwrapped(model)
    left = _other_classes(model, state, wanted)
    for key, tensor in wanted.items():
        if key in left:
            continue
        if key not in state:
            if key.endswith("num_batches_tracked"):  # absent in files older than torch 0.4.1
                state[key] = tensor
                continue
            raise ThresherError(
                f'{file} has no tensor "{key}", which {name} needs',
                "choose the model that these weights were made for",
            )
        if state[key].shape != tensor.shape:
            raise ThresherError(
                f'the tensor "{key}" in {file} is {_shape(state[key])}, '
                f"but {name} needs {_shape(tensor)}",
                "choose the model that these weights were made for",
            )
    extra = next((key for key in state if key not in wanted), None)
    if extra is not None:
        raise ThresherError(
            f'the tensor "{extra}" in {file} has no place in {name}',
            "choose the model that these weights were made for",
        )
    with torch.no_grad():
        for key, tensor in wanted.items():
            if key not in left:
                tensor.copy_(state[key])
    return left


def _other_classes(
    model: nn.Module, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> list[str]:
    """The head's tensors, when the file's head differs in its number of classes alone."""
    found = find_head(model)
    if found is None:
        return []
    path = _bare(found[0] + ".")
    names = [key for key in wanted if key.startswith(path)]
    differs = [
        key
        for key in names
        if key in state
        and state[key].shape != wanted[key].shape
        and state[key].shape[1:] == wanted[key].shape[1:]
    ]
    return names if differs else []


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ThresherError(
            f"{file} is no plain state dict (torch loads it only by running code from it, "
            "or it is cut short)",
            "save it with safetensors, or as torch.save(model.state_dict())",
        ) from error
    except Exception as error:  # torch raises a dozen kinds on broken files; each means the same.
        raise ThresherError(f"{file} is not a whole torch file") from error
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ThresherError(f"{file} holds no state dict", "save torch.save(model.state_dict())")
    return state


def _bare(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
