# Triton reads annotations as code: its kernels carry none.
# mypy: disable-error-code="no-untyped-def"
"""What the kernels of batch norm share."""

import triton
import triton.language as tl

# Numbers that do not make a kernel faster: it is not compiled again for each kind of them.
_ANY = ["rows", "per_group", "per_split", "groups", "splits", "tiles"]


def jit(function):
    """Let Triton compile a kernel, once for all values of `_ANY`."""
    names = [name for name in _ANY if name in function.__code__.co_varnames]
    return triton.jit(function, do_not_specialize=names)


@triton.jit
def scaled(value, weight, bias, column, real, WEIGHTED: tl.constexpr, BIASED: tl.constexpr):
    """Weight and bias of each column, if there are any."""
    if WEIGHTED:
        value *= tl.load(weight + column, real, 0.0).to(tl.float32)[None, :]
    if BIASED:
        value += tl.load(bias + column, real, 0.0).to(tl.float32)[None, :]
    return value


@triton.jit
def slope_before_relu(
    slope, y, normal, at, here, weight, bias, column, real,
    WEIGHTED: tl.constexpr, BIASED: tl.constexpr, RELU: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """Gradient before the ReLU, whose sign is that of `y` if SEEN, or else follows from x."""
    dy = tl.load(slope + at, here, 0.0).to(tl.float32)
    if RELU:
        if SEEN:
            before = tl.load(y + at, here, 0.0).to(tl.float32)
        else:
            before = scaled(normal, weight, bias, column, real, WEIGHTED, BIASED)
        dy = tl.where(before <= 0.0, 0.0, dy)
    return dy
