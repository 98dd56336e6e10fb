"""Weight files: safetensors, or a state dict that torch loads without running code."""

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import atomic_file
from thresher.read_errors import unreadable

logger = logging.getLogger(__name__)

# Keys under which training scripts store a state dict, and prefixes that wrappers add to names.
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_PREFIXES = ("module.", "_orig_mod.")
_HEADS = ("head", "fc", "classifier", "heads.head")


def write(state: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors by name as safetensors, atomically; takes two copies in memory."""
    copies = {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}
    # Written by Python, not by safetensors: a full disk is then an OSError with a clear message.
    with atomic_file(file) as temporary:
        temporary.write_bytes(safetensors.torch.save(copies))


def save(model: nn.Module, file: Path) -> None:
    """Write the model's state as safetensors, atomically."""
    write(unwrapped(model), file)


def unwrapped(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state dict without the prefixes of DDP or torch.compile."""
    return _without_prefix(model.state_dict())


def read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a file by name, on the CPU."""
    if not file.is_file():
        raise NotFoundError(f"there are no weights at {file}", "check the path")
    if file.suffix == ".safetensors":
        try:
            state: Any = safetensors.torch.load_file(file)
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            wrong = InvalidValueError(f"{file} is truncated or not a safetensors file ({error})")
            raise unreadable(file, error) or wrong from None
    else:
        state = _read_torch(file)
    return _without_prefix(state)


def load_into(model: nn.Module, file: Path, name: str = "the model") -> list[str]:
    """Load a file with the names and shapes of a model into it; `name` is for messages.

    If the file has no head, or one for another number of classes, the head keeps its tensors; their
    names are returned. A head that only the file has is left out.

    Raises:
        InvalidValueError: Another name or shape differs; the model is unchanged.
    """
    fix = "choose the model that these weights were made for"
    state = read(file)
    wanted = unwrapped(model)
    skipped = _head_to_skip(model, state, wanted)
    _remove_surplus_head(state, wanted, file)
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
    if skipped:
        logger.info("Not loading %s from %s: a new head is used", ", ".join(skipped), file)
    with torch.no_grad():
        for key, tensor in wanted.items():
            if key not in skipped:
                tensor.copy_(state[key])
    return skipped


def find_head(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """Return the name of the layer that maps features to logits, and the layer.

    A linear layer with a usual name is preferred, unless a later one takes its output; otherwise it
    is the last linear layer in order of registration, which is the order of use in all common
    networks.
    """
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    for number, (name, layer) in enumerate(linear):
        later = (other.in_features for _, other in linear[number + 1 :])
        if has_usual_name(name) and layer.out_features not in later:
            return name, layer
    return linear[-1] if linear else None


def has_usual_name(layer: str) -> bool:
    """Return whether a layer is called as heads usually are."""
    return _bare(layer) in _HEADS


def _head_to_skip(
    model: nn.Module, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
) -> list[str]:
    head = find_head(model)
    if head is None:
        return []
    own, bare = f"{head[0]}.", _bare(f"{head[0]}.")
    names = [key for key in wanted if key.startswith(own)]
    names = names or [key for key in wanted if key.startswith(bare)]
    shapes = [(state[key].shape, wanted[key].shape) for key in names if key in state]
    differs = any(old != new and old[1:] == new[1:] for old, new in shapes)
    return names if differs or not shapes else []


def _remove_surplus_head(
    state: dict[str, Tensor], wanted: Mapping[str, Tensor], file: Path
) -> None:
    """Remove the head that a file has, and the model has not."""
    for key in [key for key in state if key not in wanted]:
        layer = key.rpartition(".")[0]
        if has_usual_name(layer) and not any(name.startswith(f"{layer}.") for name in wanted):
            logger.info("Not loading %s of %s: the model has no such head", key, file)
            del state[key]


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InvalidValueError(
            f"{file} is not a plain state dict (it is truncated, or loading it would run code)",
            "save it with safetensors, or as torch.save(model.state_dict())",
        ) from error
    except Exception as error:  # torch raises a dozen types for damaged files
        wrong = InvalidValueError(f"{file} is truncated or not a torch file")
        raise unreadable(file, error) or wrong from error
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise InvalidValueError(
            f"{file} has no state dict", "save it as torch.save(model.state_dict())"
        )
    return state


def _without_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes of wrappers, unless a layer of the network itself is called so."""
    bare = {_bare(name): tensor for name, tensor in state.items()}
    return bare if len(bare) == len(state) else dict(state)


def _bare(name: str) -> str:
    while name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
