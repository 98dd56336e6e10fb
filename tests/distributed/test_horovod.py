"""Horovod and DDP train to the same weights; skipped where Horovod is not installed."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gloo_ranks import run_ranks
from thresher.distributed.hooks import gradient_hook
from thresher.distributed.horovod import HorovodReducer
from thresher.errors import ThresherError

pytestmark = pytest.mark.xdist_group("ranks")
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None,
    reason="Horovod is not installed (tools/build_horovod.sh)",
)


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 30), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(30, 10)).double()


def _part(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(step)
    x, y = torch.randn(24, 1, 8, 8, dtype=torch.float64), torch.randint(10, (24,))
    cuts = {1: [24], 2: [15, 9], 3: [12, 7, 5]}[world]
    return x.split(cuts)[rank], y.split(cuts)[rank]


def _train(rank: int, world: int, engine: str, compress: str = "none") -> list[float]:
    """20 steps of 24 samples, cut unevenly, each part in two pieces."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    wrapped: nn.Module = net
    reducer: HorovodReducer | None = None
    if engine == "horovod":
        reducer = HorovodReducer(net.named_parameters(), compress)
    else:
        wrapped = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.05)
        state, hook = gradient_hook(compress, "default", net.named_parameters())
        wrapped.register_comm_hook(state, hook)
    no_sync: Any = wrapped.no_sync if reducer is None else reducer.no_sync
    for step in range(20):
        optimizer.zero_grad()
        x, y = _part(step, rank, world)
        with no_sync():
            (nn.functional.cross_entropy(wrapped(x[:4]), y[:4], reduction="sum") / 24).backward()
        (nn.functional.cross_entropy(wrapped(x[4:]), y[4:], reduction="sum") / 24).backward()
        if reducer is not None:
            reducer.synchronize()
        optimizer.step()
    if reducer is not None:
        reducer.close()
    dist.barrier()
    return nn.utils.parameters_to_vector(net.parameters()).tolist()


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize("world", [2, 3])
def test_horovod_equals_ddp(world: int) -> None:
    ddp = run_ranks(world, _train, "ddp")
    for weights in run_ranks(world, _train, "horovod"):
        assert weights == pytest.approx(ddp[0], abs=1e-10)


@pytest.mark.slow
@needs_horovod
def test_horovod_with_fp16_keeps_replicas_equal() -> None:
    first, second = run_ranks(2, _train, "horovod", "fp16")
    assert first == second
    exact = run_ranks(2, _train, "ddp")[0]
    assert first != exact
    assert first == pytest.approx(exact, abs=0.05)


@needs_horovod
def test_what_horovod_cannot_compress_is_refused() -> None:
    with pytest.raises(ThresherError, match="topk does not work with engine horovod"):
        HorovodReducer([], "topk")


@needs_horovod
@pytest.mark.slow  # trains on two processes twice
def test_a_run_on_horovod_ends_with_the_weights_of_ddp(digits: Path, tmp_path: Path) -> None:
    """`train` on two workers, 20 steps of digits with batch norm, in double precision."""
    from safetensors.torch import load_file

    from thresher.distributed.local_group import run_local

    weights = {}
    for engine in ("ddp", "horovod"):
        order = tmp_path / f"{engine}.json"
        config = {
            "data": str(digits),
            "out": str(tmp_path / engine),
            "model": "tiny",
            "batch_size": 15,
            "epochs": 0.2,
            "precision": "fp64",
            "engine": engine,
            "evaluate_every": 0,
            "device": "cpu",
        }
        order.write_text(json.dumps({"config": config, "quiet": True}))
        answer = tmp_path / f"{engine}-answer.json"
        target = ["thresher.distributed.worker", "thresher.training.train:train_in_worker"]
        worker = [sys.executable, "-m", *target, str(order), str(answer)]
        run_local(2, worker)
        assert json.loads(answer.read_text())["result"]["steps"] == 20
        weights[engine] = load_file(tmp_path / engine / "model.safetensors")
    for name, tensor in weights["ddp"].items():
        torch.testing.assert_close(weights["horovod"][name], tensor, rtol=1e-9, atol=1e-9)


def test_without_horovod_the_engine_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # None in sys.modules is how Python marks a module that cannot be imported.
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with pytest.raises(ThresherError, match=r"needs Horovod, which is not installed; build it"):
        HorovodReducer([])
