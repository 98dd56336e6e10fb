"""`--compile`: the same training, and a sentence where torch cannot compile a network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.train import train

pytest_plugins = ["train_data"]

pytestmark = pytest.mark.slow

NETS = """
import torch
from torch import library, nn


@library.custom_op("thresher_test::turned", mutates_args=())
def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@turned.register_fake
def _(x):
    return torch.empty_like(x)  # other strides


turned.register_autograd(lambda context, gradient: gradient, setup_context=lambda *_, **__: None)


class Plain(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.norm, self.weight = nn.BatchNorm1d(64), nn.Parameter(torch.randn(classes, 64) / 8)

    def forward(self, x):
        # Not a matrix product, which would be between two kernels to compile.
        x = self.norm(x.mean(1).flatten(1)).relu()
        return (x[:, None] * self.weight).sum(2)


class Wrong(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Linear(64, classes)

    def forward(self, x):
        return turned(self.body(x.flatten(1)))
"""


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch._inductor.config as inductor

    (tmp_path / "nets_to_compile.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    # No processes that compile and stay, and nothing that pays off with more kernels: headers that
    # are compiled once, and programs that find out what the processor can do.
    few_kernels = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}
    with inductor.patch({"compile_threads": 1, **few_kernels}):
        yield


def _train(few: Path, out: Path, **more: Any) -> dict[str, torch.Tensor]:
    options = {
        "data": str(few),
        "batch_size": 64,
        "epochs": 1,
        "lr": 0.05,
        "threads": 1,
        "drop_last": True,
        **more,
    }
    train(TrainConfig(out=str(out), device="cpu", **options), quiet=True)
    return load_file(out / "model.safetensors")


def test_a_compiled_run_equals_an_eager_one(few: Path, tmp_path: Path) -> None:
    options = {"model": "nets_to_compile:Plain", "precision": "fp64"}
    eager = _train(few, tmp_path / "eager", **options)
    compiled = _train(few, tmp_path / "compiled", compile=True, **options)
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-9, atol=1e-9)


def test_what_cannot_be_compiled_is_said(few: Path, tmp_path: Path) -> None:
    wrong = "nets_to_compile:Wrong"
    with pytest.raises(ThresherError, match=f"^{wrong} cannot be compiled: .*stride"):
        _train(few, tmp_path / "run", model=wrong, compile=True)
    _train(few, tmp_path / "eager", model=wrong)
