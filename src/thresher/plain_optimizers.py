"""Torch's optimizers without torch's compiler.

Some of their methods import the compiler when they are first called, to tell it to leave them
alone. That takes as long as importing torch, two seconds and more, and nobody compiles them here.
"""

import inspect

import torch


class PlainOptimizer(torch.optim.Optimizer):
    """An optimizer whose methods do not import the compiler."""


for _name, _method in vars(torch.optim.Optimizer).items():
    _static = isinstance(_method, staticmethod)
    _function = _method.__func__ if _static else _method
    _code = getattr(_function, "__code__", None)
    if _code is not None and _code.co_filename == torch._compile.__file__:
        _plain = _function.__wrapped__
        setattr(PlainOptimizer, _name, staticmethod(_plain) if _static else _plain)


class SGD(PlainOptimizer, torch.optim.SGD):
    """Torch's SGD."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class AdamW(PlainOptimizer, torch.optim.AdamW):
    """Torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class LBFGS(PlainOptimizer, torch.optim.LBFGS):
    """Torch's L-BFGS."""
