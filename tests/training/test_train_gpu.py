"""What only a GPU can show: captured steps, and no memory left behind."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.distributed.exchange import Exchange
from thresher.distributed.group import Group, placement
from thresher.errors import InvalidValueError
from thresher.training import train as train_module
from thresher.training.config import TrainConfig
from thresher.training.device_data import DeviceData
from thresher.training.graph import CapturedStep
from thresher.training.result import RunResult
from thresher.training.sharing import sharing
from thresher.training.train import train

pytest_plugins = ["train_data"]

pytestmark = pytest.mark.gpu


def _run(few: Path, out: Path, **more: Any) -> RunResult:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "resnet20",
        "batch_size": 32,
        "epochs": 2,
        "lr": 0.02,
        "device": "cuda",
        "precision": "fp32",
        **more,
    }
    return train(TrainConfig(**options), quiet=True)


def _distance(a: Path, b: Path) -> float:
    """The largest difference of any weight, running statistic or counter."""
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert x.keys() == y.keys()
    return max((x[name].double() - y[name].double()).abs().max().item() for name in x)


@pytest.mark.parametrize("batch_norm", ["local", "ghost:8"])
def test_a_captured_step_takes_the_eager_steps_path(
    few: Path, tmp_path: Path, batch_norm: str
) -> None:
    """In float64, at a high rate, smaller last batches included: weights, running statistics and
    counters."""
    common: dict[str, Any] = {"precision": "fp64", "lr": 0.1, "epochs": 4, "batch_norm": batch_norm}
    eager = _run(few, tmp_path / "eager", graph="off", **common)
    captured = _run(few, tmp_path / "captured", graph="on", **common)
    assert captured.steps == eager.steps == 36
    assert _distance(tmp_path / "eager", tmp_path / "captured") < 1e-6


@pytest.mark.parametrize("dynamic", ["infobatch", "dynamic-random"])
def test_a_captured_step_weights_samples_as_the_pruner_says(
    few: Path, tmp_path: Path, dynamic: str
) -> None:
    """Pruned epochs in float64: the same samples, losses and weights captured and eager."""
    common: dict[str, Any] = {"dynamic": dynamic, "precision": "fp64", "lr": 0.05, "epochs": 4}
    eager = _run(few, tmp_path / "eager", graph="off", **common)
    captured = _run(few, tmp_path / "captured", graph="on", **common)
    assert captured.samples == eager.samples < 4 * 287
    assert captured.train_loss == pytest.approx(eager.train_loss, abs=1e-6)
    assert _distance(tmp_path / "eager", tmp_path / "captured") < 1e-6


def test_the_weights_of_a_pruner_change_a_captured_run(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above can fail: without the weights the run ends elsewhere."""
    common: dict[str, Any] = {"dynamic": "infobatch", "precision": "fp64", "lr": 0.05, "epochs": 4}
    _run(few, tmp_path / "weighted", graph="on", **common)
    monkeypatch.setattr(DeviceData, "set_weights", lambda self, weights: None)
    _run(few, tmp_path / "unweighted", graph="on", **common)
    assert _distance(tmp_path / "weighted", tmp_path / "unweighted") > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name} for name in ("nesterov", "lars", "lamb", "adamw", "muon")),
        {"bias_lr": 4.0, "head_lr": 0.5},
        {"flip": True, "flip_mode": "alternate", "crop_padding": 2, "padding_mode": "reflect"},
        {"cutout": 3, "label_smoothing": 0.2},
        {"schedule": "step", "step_epochs": (1.0,), "warmup_epochs": 1.0},
        {"batch_schedule": "double@1,2", "lr_rule": "linear"},
        {"drop_last": True, "budget": "steps", "batch_size": 48},
        {"model": "fast-cifar", "optimizer": "muon", "momentum": 0.6},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_an_option_means_the_same_captured_and_eager(
    few: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    common: dict[str, Any] = {"precision": "fp64", "lr": 0.01, "epochs": 3, **options}
    _run(few, tmp_path / "eager", graph="off", **common)
    _run(few, tmp_path / "captured", graph="on", **common)
    assert _distance(tmp_path / "eager", tmp_path / "captured") < 1e-6


class Skips(nn.Module):
    """Leaves out a layer in half of the steps, by a draw on the host."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1)).relu()
        if not self.training or float(torch.rand(())) < 0.5:
            x = x + self.second(x).relu()
        logits: Tensor = self.head(x)
        return logits


def skips(classes: int) -> nn.Module:
    return Skips(classes)


def test_a_network_that_draws_on_the_host_is_not_captured(few: Path, tmp_path: Path) -> None:
    """A graph would leave out the same layer in every step."""
    common: dict[str, Any] = {"model": "test_train_gpu:skips", "precision": "fp64", "lr": 0.05}
    _run(few, tmp_path / "eager", graph="off", **common)
    _run(few, tmp_path / "auto", graph="auto", **common)
    assert _distance(tmp_path / "eager", tmp_path / "auto") < 1e-6
    with pytest.raises(InvalidValueError, match="graph cannot be on: the network draws random"):
        _run(few, tmp_path / "on", graph="on", **common)


@pytest.mark.parametrize("options", [{}, {"graph": "off"}, {"record_dynamics": True}], ids=str)
def test_a_deterministic_run_gives_the_same_bits_twice(
    few: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    common = {"deterministic": True, "precision": "bf16", "epochs": 3, **options}
    _run(few, tmp_path / "one", **common)
    _run(few, tmp_path / "two", **common)
    assert _distance(tmp_path / "one", tmp_path / "two") == 0


def test_a_group_can_be_captured(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank that behaves as one of several: DDP, and sums through NCCL."""
    import torch.distributed as dist

    class OneOfSeveral(Group):
        @property
        def alone(self) -> bool:
            return False

    group = OneOfSeveral(placement(), torch.device("cuda", 0))
    monkeypatch.setattr(train_module, "join", lambda device: group)
    monkeypatch.setattr(Exchange, "start", Exchange._start)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        common: dict[str, Any] = {"precision": "fp64", "lr": 0.1, "epochs": 4}
        _run(few, tmp_path / "eager", graph="off", **common)
        _run(few, tmp_path / "captured", graph="on", **common)
        with pytest.raises(InvalidValueError, match="graph cannot be on: several workers"):
            _run(few, tmp_path / "refused", graph="on", compress="int8", **common)
    finally:
        dist.destroy_process_group()
    assert _distance(tmp_path / "eager", tmp_path / "captured") < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "fast-cifar", "optimizer": "muon", "momentum": 0.6, "precision": "bf16"},
        {"model": "tiny", "compile": True},
    ],
    ids=["resnet20", "fast-cifar", "compiled"],
)
def test_a_captured_step_taken_over_gives_the_bits_of_a_fresh_process(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Two seeds and two selections replay one graph; each equals a run in its own process."""
    import torch._inductor.config as inductor

    captures = []
    capture = CapturedStep.__init__

    def counted(self: CapturedStep, *arguments: Any) -> None:
        captures.append(arguments[1])
        capture(self, *arguments)

    monkeypatch.setattr(CapturedStep, "__init__", counted)
    pack = Pack.open(few)
    train_rows = pack.indices("train")
    selections = []
    for number in range(2):
        keep = np.ones(len(train_rows), bool)
        keep[number * 50 : number * 50 + 7] = False
        selections.append(tmp_path / f"s{number}.parquet")
        Selection(
            ids=pack.ids.take(train_rows).to_pylist(),
            labels=pack.labels[train_rows],
            keep=keep,
            score=np.zeros(len(keep), np.float32),
            reason=[""] * len(keep),
            fingerprint=pack.fingerprint,
        ).save(selections[-1])
    runs = [(seed, str(selection)) for selection in selections for seed in (0, 1)]
    common = {"deterministic": True, "graph": "on", **options}
    # Inductor otherwise leaves processes that compile.
    with sharing(steps=True), inductor.patch(compile_threads=1):
        for number, (seed, selection) in enumerate(runs):
            out = tmp_path / f"shared-{number}"
            _run(few, out, seed=seed, selection=selection, lr=0.01 * (1 + number), **common)
    assert captures == [32, 24]  # full batches and the last one of 280 samples, once
    for number in [3] if options.get("compile") else range(4):  # it takes half a minute each
        config = TrainConfig.load(tmp_path / f"shared-{number}" / "run.json")
        out = tmp_path / f"fresh-{number}"
        order = tmp_path / f"order-{number}.json"
        order.write_text(json.dumps([{**config.to_dict(), "out": str(out)}]))
        script = Path(__file__).with_name("many_runs.py")
        subprocess.run([sys.executable, str(script), str(order)], check=True)
        assert _distance(tmp_path / f"shared-{number}", out) == 0
    assert _distance(tmp_path / "shared-0", tmp_path / "shared-1") > 0


def test_sharing_leaves_no_memory_behind(few: Path, tmp_path: Path) -> None:
    _run(few, tmp_path / "first")
    before = torch.cuda.memory_allocated()
    with sharing(steps=True):
        for number in range(3):
            _run(few, tmp_path / str(number), seed=number)
        kept = torch.cuda.memory_allocated()
        _run(few, tmp_path / "other", batch_size=64)
    gc.collect()
    assert kept > before
    assert torch.cuda.memory_allocated() <= before


def test_accumulation_and_dynamics_can_be_captured(few: Path, tmp_path: Path) -> None:
    result = _run(few, tmp_path / "run", micro_batch=8, graph="on", record_dynamics=True)
    assert result.resolved.accumulation == 4
    assert (tmp_path / "run" / "dynamics.parquet").exists()


def test_many_runs_leave_no_memory_behind(few: Path, tmp_path: Path) -> None:
    held = []
    for number in range(4):
        _run(few, tmp_path / str(number))
        held.append(torch.cuda.memory_allocated())
    assert held[3] <= held[1]


def test_auto_survives_a_full_device(few: Path, tmp_path: Path) -> None:
    """First with all the memory, then with a third of what that took."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    more: dict[str, Any] = {"model": "resnet110", "batch_size": 256, "epochs": 1, "graph": "off"}
    torch.cuda.reset_peak_memory_stats()
    _run(few, tmp_path / "roomy", **more)
    taken = torch.cuda.max_memory_allocated() - before
    gc.collect()
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + taken / 3
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    try:
        result = _run(few, tmp_path / "tight", micro_batch="auto", **more)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result.status == "finished"
    assert result.resolved.accumulation > 1
