"""The head of any classifier: the linear layer that turns features into logits."""

from torch import nn

# `head` is ours and timm's newer name, `fc` the residual networks', `classifier` the others'.
_USUAL = ("head", "fc", "classifier", "heads.head")


def find_head(model: nn.Module) -> tuple[str, nn.Linear] | None:
    """The head's name in `named_modules()` and the layer; None where no linear layer exists.

    A layer under a usual name wins; otherwise it is the last linear layer in the order in which
    the model registered them, which is the order of use in all common networks.
    """
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    for name in linear:
        if name.removeprefix("module.").removeprefix("_orig_mod.") in _USUAL:
            return name, linear[name]
    return list(linear.items())[-1] if linear else None
