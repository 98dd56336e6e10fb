"""Find the head of a classifier: the linear layer that maps features to logits."""

from torch import nn

_USUAL_NAMES = ("head", "fc", "classifier", "heads.head")


def find_head(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """Return the head's name in `named_modules()` and the layer; None without a linear layer.

    A linear layer with a usual name is preferred; otherwise it is the last linear layer in order
    of registration, which is the order of use in all common networks.
    """
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name in linear:
        if name.removeprefix("module.").removeprefix("_orig_mod.") in _USUAL_NAMES:
            return name, linear[name]
    return list(linear.items())[-1] if linear else None
