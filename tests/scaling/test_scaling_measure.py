"""Real measurements of a small network; times are only compared with each other."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from thresher.cli.scale import Measure
from thresher.cli.scale import measure as measure_command
from thresher.environment import choose_device
from thresher.errors import ThresherError
from thresher.models.registry import build
from thresher.scaling.captured import _capture, is_captured, with_captured
from thresher.scaling.catalog import load_cluster
from thresher.scaling.layers import batches_down, flops_of, time_layers
from thresher.scaling.links import measure_group
from thresher.scaling.measure import MeasureConfig, bucket_table, measure
from thresher.scaling.profile import Profile
from thresher.scaling.synthetic import SyntheticBatch


class Uneven(nn.Module):
    """A heavy layer and a light one, with a branch, so that the attribution can be checked."""

    def __init__(self) -> None:
        super().__init__()
        self.heavy = nn.Conv2d(3, 64, 7, padding=3)
        self.light = nn.Conv2d(64, 2, 1)
        self.side = nn.Conv2d(64, 2, 1)
        self.head = nn.Linear(2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.heavy(x)
        return self.head((self.light(x) + self.side(x)).mean((2, 3)))


@pytest.mark.alone
def test_time_lands_on_the_layer_that_takes_it() -> None:
    layers, batches = time_layers(
        Uneven(),
        SyntheticBatch((3, 24, 24), 10, 4),
        torch.device("cpu"),
        seconds_per_batch=0.2,
        statistic=min,  # others may use this machine
    )
    by_name = {layer.name: layer for layer in layers}
    assert [layer.name for layer in layers] == ["heavy", "light", "side", "head"]
    assert by_name["heavy"].forward_s[4] > by_name["head"].forward_s[4]
    assert by_name["heavy"].backward_s[4] > by_name["head"].backward_s[4]
    assert by_name["heavy"].parameters == 3 * 64 * 49 + 64
    assert by_name["heavy"].flops == 2 * 3 * 49 * 64 * 24 * 24
    assert [b.batch for b in batches] == [4, 2, 1]
    top = batches[0]
    total = sum(layer.backward_s[4] for layer in layers)
    assert 0.4 * top.backward_s < total <= 1.5 * top.backward_s
    assert top.step_s >= 0.5 * (top.forward_s + top.backward_s + top.optimizer_s)


def test_batches_go_down_to_one() -> None:
    assert batches_down(64) == [64, 32, 16, 8, 4, 2, 1]
    assert batches_down(48) == [48, 24, 12, 6, 3, 1]
    assert batches_down(1) == [1]


def test_operations_of_layers() -> None:
    assert flops_of(nn.Linear(100, 10), (8, 10)) == 2000
    assert flops_of(nn.Conv2d(8, 8, 3, groups=8), (1, 8, 5, 5)) == 2 * 9 * 8 * 25
    assert flops_of(nn.ReLU(), (8, 10)) == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("profile") / "p.json"
    outcome = measure_command(
        Measure(
            model="tiny", out=out, batch_size=16, workers=2, image_size=8, seconds_per_batch=0.1
        )
    )
    assert outcome is not None
    return out, outcome.data


@pytest.mark.slow  # starts torch in two processes
def test_a_profile_of_two_workers_is_whole(tiny: tuple[Path, dict[str, object]]) -> None:
    out, data = tiny
    found = Profile.load(out, "tiny")
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert found.gradient_bytes == 4 * found.parameters == data["gradient_bytes"]
    assert sum(layer.parameters for layer in found.layers) == found.parameters
    assert sum(b.bytes for b in bucket_table(found)) == found.gradient_bytes
    assert found.allreduce is not None
    assert found.allreduce.workers == 2
    points = found.allreduce.points
    assert points[-1].seconds > points[0].seconds
    assert found.allreduce.seconds_per_byte > 0
    assert found.overlap is not None
    assert found.overlap.step_s > 0
    assert 0 <= found.overlap.hidden <= 1


@pytest.mark.slow  # starts torch in three processes
def test_under_torchrun_the_present_group_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    flags = ["--model", "tiny", "--batch-size", "4", "--image-size", "8", "--out", str(out)]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    measure_it = ["-m", "thresher", "scale", "measure", *flags, "--seconds-per-batch", "0.1"]
    done = subprocess.run(
        [sys.executable, *command, *measure_it, "--json"],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    profile = Profile.load(out)
    assert profile.allreduce is not None
    assert profile.overlap is not None
    assert said["allreduce"]["workers"] == profile.overlap.workers == 2
    assert len(profile.allreduce.points) == 8


def test_impossible_measurements_are_refused() -> None:
    for options, message in (
        ({"batch_size": 4, "workers": 8}, r"batch_size must be at least .* workers \(8\), got 4"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seconds_per_batch": float("inf")}, r"seconds_per_batch must be in .*, got inf"),
        ({"image_size": 0}, "image_size must be at least 1, got 0"),
    ):
        with pytest.raises(ThresherError, match=message):
            measure(MeasureConfig(model="tiny", **options))
    with pytest.raises(ThresherError, match="workers must be at least 2"):
        measure_group(1)
    with pytest.raises(ThresherError, match='device "tpu" is not available'):
        choose_device("tpu")
    with pytest.raises(ThresherError, match="unknown model"):
        measure(MeasureConfig(model="tinny", batch_size=4))


def test_an_error_of_a_worker_is_raised_here() -> None:
    with pytest.raises(ThresherError, match="no-such-model"):
        measure_group(2, "no-such-model", SyntheticBatch((3, 8, 8), 10, 2))


@pytest.mark.slow  # measures memory and links
def test_this_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path))
    first = load_cluster("local")
    assert first.nodes == 1
    assert first.peak_flops("fp32") > 1e8
    assert 1e6 < first.inner_bytes_s < 1e13
    (file,) = (tmp_path / "clusters").iterdir()
    written = file.stat().st_mtime_ns
    assert load_cluster("local") == first
    assert file.stat().st_mtime_ns == written


def test_times_of_captured_steps_are_divided_as_those_of_ordinary_ones() -> None:
    layers, batches = time_layers(
        Uneven(), SyntheticBatch((3, 8, 8), 10, 2), torch.device("cpu"), seconds_per_batch=0.01
    )
    captured = {times.batch: [times.step_s / 4] * 5 for times in batches}
    fewer, scaled = with_captured(layers, batches, captured, min)
    for before, after in zip(batches, scaled, strict=True):
        assert after.step_s == before.step_s / 4
        assert after.forward_s == pytest.approx(before.forward_s / 4)
        assert after.optimizer_s == pytest.approx(before.optimizer_s / 4)
        assert after.spread == 0
    assert fewer[0].backward_s[2] == pytest.approx(layers[0].backward_s[2] / 4)


def test_steps_are_captured_where_training_captures_them() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert is_captured("fp32", 1, gpu)
    assert is_captured("bf16", 1, gpu)
    assert not is_captured("fp16", 1, gpu)
    assert not is_captured("bf16", 2, gpu)
    assert not is_captured("fp32", 1, cpu)


@pytest.mark.gpu
def test_on_a_gpu_captured_steps_are_timed(tmp_path: Path) -> None:
    """They are faster than ordinary ones, most of all at small batches."""
    config = MeasureConfig(
        model="resnet20", batch_size=16, device="cuda", precision="bf16", seconds_per_batch=0.2
    )
    profile = measure(config, min)
    assert profile.steps == "captured"
    network = build("resnet20", 10, 3)
    batch = SyntheticBatch((3, 32, 32), 10, 16)
    _, ordinary = time_layers(
        network, batch, torch.device("cuda"), "bf16", seconds_per_batch=0.2, statistic=min
    )
    for captured, before in zip(profile.batches, ordinary, strict=True):
        assert captured.step_s < before.step_s
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json").steps == "captured"
    half = measure(replace(config, precision="fp16", batch_size=2), min)
    assert half.steps == "ordinary"


@pytest.mark.gpu
def test_the_memory_of_a_captured_step_is_not_given_to_others() -> None:
    """Tensors of the sizes of the momenta, which the step writes to, keep their values."""
    network = build("resnet20", 10, 3).cuda()
    replay = _capture(network, SyntheticBatch((3, 32, 32), 10, 16), "fp32")
    others = [torch.full_like(parameter, 7) for parameter in network.parameters()]
    replay()
    torch.cuda.synchronize()
    assert all(bool((other == 7).all()) for other in others)
