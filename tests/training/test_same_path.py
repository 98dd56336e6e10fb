"""The same global batch takes the same path on any number of workers, in any pieces."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from thresher.distributed.launch import launch
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.resolved import resolve
from thresher.training.train import train

pytest_plugins = ["train_data"]

BATCH = 40
"""287 samples: 7 full batches and one of 7 in an epoch, so 1.25 epochs are ten steps. Of that last
batch four workers get 2, 2, 2, 1 samples, and of its two groups only two get any."""
SCRIPT = Path(__file__).parent / "many_runs.py"

CASES: dict[str, dict[str, Any]] = {
    "sync64": {"batch_norm": "sync", "precision": "fp64"},
    "ghost64": {"batch_norm": "ghost:4", "precision": "fp64"},
    "sync32": {"batch_norm": "sync"},
    "delay64": {"batch_norm": "sync", "precision": "fp64", "delay": 1},
}


def _options(few: Path, out: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": str(few),
        "out": str(out),
        "model": "quick_network:narrow",
        "bucket_mb": 0.0133,  # three buckets in float64
        "batch_size": BATCH,
        "epochs": 1.25,
        "evaluate_every": 0,
        "lr": 0.05,
        "flip": True,
        "device": "cpu",
        "threads": 1,
        **more,
    }


@pytest.fixture(scope="module")
def alone(few: Path, once: Callable[..., Path]) -> Path:
    """One worker's weights, in one piece."""

    def make(root: Path) -> None:
        for name, case in CASES.items():
            result = train(TrainConfig(**_options(few, root / name, **case)), quiet=True)
            assert result.steps == 10

    return once("same-path", make)


def _distance(a: Path, b: Path) -> float:
    """The largest difference of any weight or running statistic, relative to the largest weight."""
    x, y = load_file(a / "model.safetensors"), load_file(b / "model.safetensors")
    assert x.keys() == y.keys()
    largest = max(t.double().abs().max().item() for t in x.values())
    return max((x[k].double() - y[k].double()).abs().max().item() for k in x) / largest


@pytest.mark.slow  # trains on up to four processes
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_workers_do_not_change_the_path(
    few: Path, alone: Path, tmp_path: Path, workers: int
) -> None:
    names = ["sync64"] if workers != 2 else list(CASES)
    runs = [_options(few, tmp_path / name, **CASES[name]) for name in names]
    # Pieces and workers at once.
    runs.append(_options(few, tmp_path / "pieces", **CASES["ghost64"], micro_batch=8))
    if workers == 2:
        averaging = {"batch_size": 20, "average_every": 4, "checkpoint_every": 7}
        runs.append(_options(few, tmp_path / "averaged", **averaging))
        # One ends between two averages at a target, the other where its budget does.
        between = {"average_every": 5, "schedule": "constant", "evaluate_every": 1}
        runs.append(_options(few, tmp_path / "target", **between, target_loss=100.0))
        runs.append(_options(few, tmp_path / "budget", **between, epochs=1))
    orders = tmp_path / "runs.json"
    orders.write_text(json.dumps(runs))
    launch(workers, [str(SCRIPT), str(orders)], max_restarts=0)
    assert _distance(alone / "sync64", tmp_path / "sync64") < 1e-10
    assert _distance(alone / "ghost64", tmp_path / "pieces") < 1e-10
    one, several = (root / "sync64" / "correct.npy" for root in (alone, tmp_path))
    assert one.read_bytes() == several.read_bytes()
    if "sync32" in names:
        # Rounding grows along the path: two workers may be as far from the exact one as one is.
        rounding = _distance(alone / "sync64", alone / "sync32")
        assert 0 < _distance(alone / "sync64", tmp_path / "sync32") < 10 * rounding
        assert rounding < 0.2
        assert _distance(alone / "delay64", tmp_path / "delay64") < 1e-10
        assert _distance(alone / "delay64", alone / "sync64") > 1e-3
        averaged = json.loads((tmp_path / "averaged" / "result.json").read_text())
        assert averaged["status"] == "finished"
        assert averaged["train_loss"] < 2.3
        ends = [
            json.loads((tmp_path / n / "result.json").read_text()) for n in ("target", "budget")
        ]
        assert [end["status"] for end in ends] == ["target", "finished"]
        assert ends[0]["loss"] == ends[1]["loss"]
        # The target was measured with the weights that the run ends with.
        (*_, line) = (tmp_path / "target" / "metrics.jsonl").read_text().splitlines()
        assert json.loads(line)["loss"] == pytest.approx(ends[0]["loss"], rel=1e-6)
        assert _distance(tmp_path / "target", tmp_path / "budget") == 0


@pytest.mark.slow  # compares with four runs
@pytest.mark.parametrize(
    ("case", "micro", "pieces"), [("ghost64", 24, 2), ("ghost64", 8, 5), ("sync64", 8, 5)]
)
def test_accumulation_does_not_change_the_path(
    few: Path, alone: Path, tmp_path: Path, case: str, micro: int, pieces: int
) -> None:
    config = TrainConfig(**_options(few, tmp_path / "run", **CASES[case], micro_batch=micro))
    assert train(config, quiet=True).resolved.accumulation == pieces
    assert _distance(alone / case, tmp_path / "run") < 1e-10


@pytest.mark.slow  # compares with four runs
def test_other_samples_give_other_weights(few: Path, alone: Path, tmp_path: Path) -> None:
    """The comparison above can fail: another seed is far away."""
    config = TrainConfig(**_options(few, tmp_path / "run", **CASES["sync64"], seed=1))
    train(config, quiet=True)
    assert _distance(alone / "sync64", tmp_path / "run") > 1e-3


@pytest.mark.slow  # compares with four runs
def test_many_runs_in_one_process_leave_nothing_behind(
    few: Path, alone: Path, tmp_path: Path
) -> None:
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    train(TrainConfig(**_options(few, tmp_path / "run", **CASES["sync32"])), quiet=True)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    a = load_file(alone / "sync32" / "model.safetensors")
    b = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_more_workers_than_samples_in_a_batch_are_refused() -> None:
    config = TrainConfig(data="d", out="o", batch_size=4, workers=5)
    with pytest.raises(ThresherError, match="5 workers cannot share a batch of 4 samples"):
        resolve(config, 100)
