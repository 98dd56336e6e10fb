"""Weight files: safetensors, or a state dict that torch loads without running code.

Checkpoints of Lightning are such files, too: they have the state dict of a module that contains the
network, so that names begin with `model.` or the like.
"""

import contextlib
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
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
_CHECKPOINT = ".ckpt"
_SHOWN = 3
"""Names of tensors in a message."""
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
    wanted = unwrapped(model)
    state = _of_network(read(file), _body(model, wanted), file, name)
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


def _body(model: nn.Module, wanted: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that a file must have: all but the head and batch counts."""
    head = find_head(model)
    own = () if head is None else (f"{head[0]}.", _bare(f"{head[0]}."))
    names = [key for key in wanted if not key.endswith("num_batches_tracked")]
    return [key for key in names if not key.startswith(own)] or names


def _of_network(
    state: dict[str, Tensor], body: Sequence[str], file: Path, name: str
) -> dict[str, Tensor]:
    """Return the tensors of the network in a file, whose names may have a prefix such as `net.`.

    Tensors without the prefix, such as those of a loss, are left out.
    """
    if not body or any(key in state for key in body):
        return state
    prefixes = [key.removesuffix(body[0]) for key in state if key.endswith(f".{body[0]}")]
    fits = {prefix: sum(prefix + key in state for key in body) for prefix in prefixes}
    best = [prefix for prefix in fits if fits[prefix] == max(fits.values())]
    if not best:
        raise InvalidValueError(
            f"no tensor in {file} has a name that {name} needs: it needs {_some(body)}, but the "
            f"file has {_some(list(state))}",
            "choose the model that these weights were made for",
        )
    if len(best) > 1:
        raise InvalidValueError(
            f"{file} has {len(best)} networks that fit {name}, whose names begin with "
            f"{_some(best)}",
            "save the state dict of one of them",
        )
    prefix = best[0]
    logger.info("Loading the tensors of %s whose names begin with %s", file, prefix)
    return {key.removeprefix(prefix): t for key, t in state.items() if key.startswith(prefix)}


def _some(names: Sequence[str]) -> str:
    more = [f"{len(names) - _SHOWN:,} more"] if len(names) > _SHOWN else []
    return ", ".join([*(f'"{name}"' for name in names[:_SHOWN]), *more]) or "none"


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
        with _objects_left_out(file):
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


class _LeftOut(dict[Any, Any]):
    """Stands for an object of a checkpoint that is not a tensor; its own class is not imported."""

    def __new__(cls, *_: Any) -> "_LeftOut":
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


@contextlib.contextmanager
def _objects_left_out(file: Path) -> Iterator[None]:
    """Let torch load a checkpoint of Lightning whose settings are objects, without running code.

    Every class and function that torch does not know as safe is replaced by `_LeftOut`.
    """
    names: list[str] = []
    if file.suffix == _CHECKPOINT:
        with contextlib.suppress(ValueError):  # the format of torch before 1.6
            names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    with torch.serialization.safe_globals([(_LeftOut, name) for name in names]):
        yield


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
