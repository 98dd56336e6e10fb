"""Networks of the user's own: what they must return, and batches without a sample."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gloo_ranks import run_ranks
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError
from thresher.models.batch_norm import convert
from thresher.models.embed import features_of_run
from thresher.models.registry import build
from thresher.models.weights import read
from thresher.paths import RunPaths
from thresher.training.config import TrainConfig
from thresher.training.model import check_model
from thresher.training.step import Objective
from thresher.training.train import train

pytest_plugins = ["train_data"]
SHAPE = (1, 8, 8)


class Own(nn.Module):
    """A convolution, `reshape(n, -1)`, a head, and a parameter that nothing depends on."""

    def __init__(self, pack: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 2, 3), nn.Linear(72, 10)
        self.norm: nn.Module = nn.BatchNorm2d(2)
        self.aux, self.pack = nn.Linear(2, 2), pack

    def forward(self, x: Tensor) -> Any:
        maps = self.norm(self.conv(x))
        return self.pack(self.out(maps.reshape(len(x), -1)))


def tuples(classes: int) -> nn.Module:
    return Own(lambda logits: (logits, logits))


def test_a_model_that_returns_something_else_is_refused_before_anything_is_written(
    few: Path, tmp_path: Path
) -> None:
    config = TrainConfig(data=str(few), out=str(tmp_path / "run"), model="test_own_models:tuples")
    with pytest.raises(InvalidValueError, match="returns tuple for 2 images of 10 classes"):
        train(config, quiet=True)
    assert not (tmp_path / "run").exists()


def test_shapes_that_do_not_fit_are_refused() -> None:
    model = Own()
    with pytest.raises(InvalidValueError, match=r"returns \(2, 10\) for 2 images of 11 classes"):
        check_model(model, "own", SHAPE, 11, alone=True)
    with pytest.raises(InvalidValueError, match='"own" fails on images of 3×8×8: Given groups=1'):
        check_model(model, "own", (3, 8, 8), 10, alone=True)


def test_the_check_leaves_the_model_as_it_was() -> None:
    model, random = Own(), torch.get_rng_state()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_model(model, "own", SHAPE, 10, alone=True)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    with pytest.raises(InvalidValueError, match=r'does not depend on its parameter "aux.weight"'):
        check_model(model, "own", SHAPE, 10, alone=False)
    model.aux.requires_grad_(False)
    check_model(model, "own", SHAPE, 10, alone=False)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_worker_without_a_sample_does_not_run_the_model() -> None:
    """`reshape(n, -1)` of nothing fails."""
    model = Own()
    model.norm = nn.Identity()  # no batch norm, which is another reason not to run it
    loss, _, _ = Objective(model, 0.0, per_sample=False)(
        torch.empty(0, *SHAPE), torch.empty(0, dtype=torch.int64)
    )
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def lazy(classes: int) -> nn.Module:
    """Layers whose sizes follow from the images, and one batch norm that is not lazy."""
    return nn.Sequential(
        nn.LazyConv2d(4, 3),
        nn.LazyBatchNorm2d(),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def unused(classes: int) -> nn.Module:
    model = Own()
    model.aux = nn.LazyLinear(3)
    return model


def test_lazy_layers_are_initialised_by_the_seed(few: Path, tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)  # as if another process
        config = TrainConfig(
            data=str(few),
            out=str(tmp_path / str(number)),
            model="test_own_models:lazy",
            seed=seed,
            epochs=1,
            lr=1e-9,
            device="cpu",
        )
        assert train(config, quiet=True).status == "finished"
        weights.append(read(RunPaths(Path(config.out)).model))
    first, same, other = weights
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    pack = Pack.open(few)
    assert features_of_run(config.out, pack).array.shape == (len(pack.indices("train")), 144)


def test_statistics_of_lazy_models_are_those_of_no_image() -> None:
    model = build("test_own_models:lazy", 10, 1, sides=(8, 8))
    for layer in (model[1], model[3]):  # type: ignore[index]
        assert type(layer) is nn.BatchNorm2d
        assert layer.num_batches_tracked == 0
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert not layer.running_mean.any()
        assert torch.equal(layer.running_var, torch.ones(4))


def test_lazy_layers_that_cannot_get_their_size_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="lazy layers, and the size of the images"):
        build("test_own_models:lazy", 10, 1)
    with pytest.raises(InvalidValueError, match="fails on images of 1×2×2: Calculated padded"):
        build("test_own_models:lazy", 10, 1, sides=(2, 2))
    with pytest.raises(InvalidValueError, match='passes through the lazy layer "aux" of model'):
        build("test_own_models:unused", 10, 1, sides=(8, 8))


def _summed(rank: int, world: int, empty: int) -> list[dict[str, Tensor]]:
    """Gradients, summed over ranks, and statistics after two steps; rank `empty` has no sample."""
    torch.manual_seed(0)
    model = Own().double()
    model.aux.requires_grad_(False)
    objective = Objective(convert(model, "sync").train(), 0.1, per_sample=False)
    images, labels = torch.randn(5, *SHAPE, dtype=torch.float64), torch.arange(5)
    part = slice(0, 0) if rank == empty else slice(0, 5)
    for _ in range(2):
        loss, _, _ = objective(images[part], labels[part])
        loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if world > 1:
        for gradient in gradients.values():
            dist.all_reduce(gradient)
    assert model.norm.training
    return [gradients, dict(model.named_buffers())]


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("empty", [0, 1])
def test_sync_batch_norm_of_models_that_do_not_accept_an_empty_batch(empty: int) -> None:
    alone = _summed(0, 1, empty=-1)
    for rank in run_ranks(2, _summed, empty):
        for ours, expected in zip(rank, alone, strict=True):
            assert ours.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-10)
