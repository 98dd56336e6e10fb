"""Weight files: safetensors, or a state dict that torch loads without running code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thresher.errors import InvalidValueError, NotFoundError
from thresher.models.head import find_head
from thresher.paths import atomic_file

# Keys under which training scripts store a state dict, and prefixes that wrappers add to names.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")


def save(model: nn.Module, file: Path) -> None:
    """Write the model's state as safetensors, atomically; takes one copy in memory."""
    from safetensors.torch import save_file

    state = {name: t.detach().cpu().contiguous().clone() for name, t in unwrapped(model).items()}
    with atomic_file(file) as temporary:
        save_file(state, temporary)


def unwrapped(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state dict without the prefixes of DDP or torch.compile."""
    return {_bare(name): tensor for name, tensor in model.state_dict().items()}


def read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name, on the CPU.

    Raises:
        NotFoundError: There is no such file.
        InvalidValueError: The file is damaged or is not a state dict.
    """
    if not file.is_file():
        raise NotFoundError(f"there are no weights at {file}", "check the path")
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state: Any = load_file(file)
        except (SafetensorError, OSError, ValueError) as error:
            raise InvalidValueError(
                f"{file} is truncated or not a safetensors file ({error})"
            ) from None
    else:
        state = _read_torch(file)
    return {_bare(name): tensor for name, tensor in state.items()}


def load_into(model: nn.Module, file: Path, name: str = "the model") -> list[str]:
    """Load a file into a model.

    If only the number of classes differs, the head keeps its tensors.

    Args:
        model: Its names and shapes must be those of the file.
        file: Safetensors file or state dict.
        name: Name of the model, for messages.

    Returns:
        The names of the head's tensors that were not loaded.

    Raises:
        InvalidValueError: Another name or shape differs; the model is unchanged.
    """
    fix = "choose the model that these weights were made for"
    state = read(file)
    wanted = unwrapped(model)
    skipped = _head_of_other_classes(model, state, wanted)
    for key, tensor in wanted.items():
        if key in skipped:
            continue
        if key not in state:
            if key.endswith("num_batches_tracked"):  # absent in files older than torch 0.4.1
                state[key] = tensor
                continue
            raise InvalidValueError(f'{file} has no tensor "{key}", which {name} needs', fix)
        if state[key].shape != tensor.shape:
            raise InvalidValueError(
                f'tensor "{key}" in {file} is {_shape(state[key])}, but {name} needs '
                f"{_shape(tensor)}",
                fix,
            )
    extra = next((key for key in state if key not in wanted), None)
    if extra is not None:
        raise InvalidValueError(f'{name} has no tensor "{extra}", which {file} has', fix)
    with torch.no_grad():
        for key, tensor in wanted.items():
            if key not in skipped:
                tensor.copy_(state[key])
    return skipped


def _head_of_other_classes(
    model: nn.Module, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> list[str]:
    """Return the names of the head's tensors if they differ only in the number of classes."""
    head = find_head(model)
    if head is None:
        return []
    path = _bare(head[0] + ".")
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
        raise InvalidValueError(
            f"{file} is not a plain state dict (it is truncated, or loading it would run code)",
            "save it with safetensors, or as torch.save(model.state_dict())",
        ) from error
    except Exception as error:  # torch raises a dozen types for damaged files
        raise InvalidValueError(f"{file} is truncated or not a torch file") from error
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise InvalidValueError(
            f"{file} has no state dict", "save it as torch.save(model.state_dict())"
        )
    return state


def _bare(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
