"""A run that begins with the state of another."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.errors import InvalidValueError, NotFoundError
from thresher.training.config import TrainConfig, check
from thresher.training.pruners import make_pruner
from thresher.training.result import RunResult
from thresher.training.train import train

pytest_plugins = ["train_data"]


def _config(few: Path | str, out: Path | str, **more: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "data": str(few),
        "out": str(out),
        "model": "tiny",
        "batch_size": 20,
        "epochs": 1,
        "lr": 0.02,
        "schedule": "constant",
        "threads": 1,
        "device": "cpu",
        **more,
    }
    return TrainConfig(**options)


@pytest.fixture(scope="module")
def trunk(few: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch, with its checkpoint."""
    out = tmp_path_factory.mktemp("branch") / "trunk"
    train(_config(few, out, keep_checkpoint=True), quiet=True)
    return out


@pytest.mark.slow
def test_a_branch_with_the_same_options_is_the_longer_run(
    few: Path, trunk: Path, tmp_path: Path
) -> None:
    whole, branch = tmp_path / "whole", tmp_path / "branch"
    train(_config(few, whole, epochs=2), quiet=True)
    result = train(_config(few, branch, epochs=2, branch_from=str(trunk)), quiet=True)
    x, y = (load_file(run / "model.safetensors") for run in (whole, branch))
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert result.steps == 30
    steps = [json.loads(line) for line in (branch / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if line["kind"] == "step"] == list(range(16, 31))
    assert any((trunk / "checkpoints").iterdir())
    assert not (branch / "checkpoints").exists()


def test_a_branch_of_a_run_that_ends_within_an_epoch_has_the_rest_of_it(
    few: Path, trunk: Path, tmp_path: Path
) -> None:
    short, branch = tmp_path / "short", tmp_path / "branch"
    assert train(_config(few, short, epochs=100 / 287, keep_checkpoint=True), quiet=True).steps == 5
    result = train(_config(few, branch, branch_from=str(short)), quiet=True)
    assert (result.steps, result.samples) == (15, 287)
    x, y = (load_file(run / "model.safetensors") for run in (trunk, branch))
    assert all(torch.equal(x[name], y[name]) for name in x)
    assert result.train_loss == pytest.approx(RunResult.load(trunk).train_loss)


@pytest.mark.parametrize(
    ("options", "status"), [({"target_accuracy": 0.05}, "target"), ({"lr": 1e30}, "diverged")]
)
def test_a_run_killed_between_its_kept_checkpoint_and_its_result_has_ended(
    few: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, float],
    status: str,
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    more = {"epochs": 2, "keep_checkpoint": True, **options}
    whole = train(_config(few, tmp_path / "whole", **more), quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr("thresher.training.folder.write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            train(_config(few, tmp_path / "run", **more), quiet=True)
    resumed = train(_config(few, tmp_path / "run", resume=True, **more), quiet=True)
    assert whole.status == resumed.status == status
    assert (resumed.steps, resumed.accuracy) == (whole.steps, whole.accuracy)


@pytest.mark.slow
def test_a_branch_goes_on_with_a_batch_that_grew(few: Path, tmp_path: Path) -> None:
    options = {"batch_schedule": "noise", "batch_size": 4, "max_batch": 64, "seed": 1}
    whole, trunk, branch = (tmp_path / name for name in ("whole", "trunk", "branch"))
    longer = train(_config(few, whole, epochs=4, **options), quiet=True)
    (_, _), (grown, batch) = longer.resolved.batch_phases[:2]
    assert (grown, batch) == (2, 8), "choose the seed or the epochs of the trunk anew"
    for epochs in (2, 3):  # the trunk ends where the batch grows, and later
        begun = trunk / str(epochs)
        train(_config(few, begun, epochs=epochs, keep_checkpoint=True, **options), quiet=True)
        out = branch / str(epochs)
        result = train(_config(few, out, epochs=4, branch_from=str(begun), **options), quiet=True)
        assert result.resolved.batch_phases == longer.resolved.batch_phases
        x, y = (load_file(run / "model.safetensors") for run in (whole, out))
        assert all(torch.equal(x[name], y[name]) for name in x)
    other = {**options, "batch_size": 6, "branch_from": str(begun)}
    result = train(_config(few, tmp_path / "other", epochs=3.1, **other), quiet=True)
    assert result.resolved.batch_phases == []


def _epochs(run: Path) -> tuple[list[int], list[float]]:
    """Return the steps of each epoch that a run wrote, and their rates."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    return [line["epoch"] for line in steps], [line["lr"] for line in steps]


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("epochs", [2, 1.5])
def test_a_branch_of_a_pruned_run_goes_on_in_its_epoch(
    few: Path, tmp_path: Path, epochs: float, own: bool
) -> None:
    """It counted epochs in samples, of which a pruned run has seen fewer."""
    options = {"schedule": "cosine", "batch_size": 7}  # 41 steps of 287 samples
    pruner = make_pruner("random:0.5")
    name = None if own else "random:0.5"
    begun = _config(few, tmp_path / "trunk", epochs=epochs, keep_checkpoint=True, **options)
    begun = replace(begun, dynamic=name)
    trunk = train(begun, pruner=pruner if own else None, quiet=True)
    assert trunk.samples < 287 * epochs
    config = _config(few, tmp_path / "branch", epochs=3, branch_from=begun.out, **options)
    result = train(config, quiet=True)
    places, rates = _epochs(tmp_path / "branch")
    assert places == ([] if epochs == 2 else [1] * 21) + [2] * 41
    assert result.samples == trunk.samples + (287 if epochs == 2 else 287 + 144)
    train(_config(few, tmp_path / "whole", epochs=3, **options), quiet=True)
    assert rates[-41:] == _epochs(tmp_path / "whole")[1][-41:]


@pytest.mark.parametrize("budget", ["epochs", "samples"])
def test_a_branch_of_a_branch_of_a_pruned_run_goes_on_in_its_epoch(
    few: Path, tmp_path: Path, budget: str
) -> None:
    options = {"batch_size": 41, "budget": budget, "keep_checkpoint": True}
    trunk, branch, second, whole = (tmp_path / name for name in ("a", "b", "c", "d"))
    train(_config(few, trunk, epochs=2, dynamic="random:0.5", **options), quiet=True)
    train(_config(few, branch, epochs=3, branch_from=str(trunk), **options), quiet=True)
    train(_config(few, second, epochs=4, branch_from=str(branch), **options), quiet=True)
    train(_config(few, whole, epochs=4, branch_from=str(trunk), **options), quiet=True)
    assert _epochs(branch)[0] + _epochs(second)[0] == _epochs(whole)[0]
    x, y = (load_file(run / "model.safetensors") for run in (second, whole))
    assert all(torch.equal(x[name], y[name]) for name in x)


def test_a_branch_of_a_pruned_run_that_was_stopped_within_an_epoch(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    options = {"batch_size": 7, "checkpoint_every": 9, "dynamic": "random:0.5"}
    with monkeypatch.context() as patch:
        patch.setattr("thresher.training.folder.write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            train(_config(few, tmp_path / "trunk", epochs=1, **options), quiet=True)
    branch = _config(few, tmp_path / "b", epochs=1, batch_size=7, branch_from=f"{tmp_path}/trunk")
    train(branch, quiet=True)
    # The checkpoint is of 18 of the 21 steps of a pruned epoch, as much as 35.1 of 41.
    assert _epochs(tmp_path / "b")[0] == [0] * 6


def test_a_branch_may_have_another_batch_and_rate(few: Path, trunk: Path, tmp_path: Path) -> None:
    options = {"epochs": 2, "branch_from": str(trunk), "batch_size": 40, "lr": 0.03}
    result = train(_config(few, tmp_path / "branch", **options), quiet=True)
    assert result.steps == 15 + 8
    assert result.samples == 2 * 287


def test_what_a_branch_cannot_continue_is_refused(few: Path, trunk: Path, tmp_path: Path) -> None:
    out = tmp_path / "branch"
    with pytest.raises(
        InvalidValueError, match=r"has `head_lr` 1.0, not 0.5; branch with the same"
    ):
        train(_config(few, out, branch_from=str(trunk), head_lr=0.5), quiet=True)
    dropping = {"epochs": 1, "drop_last": True, "keep_checkpoint": True}
    train(_config(few, tmp_path / "dropping", **dropping), quiet=True)
    with pytest.raises(InvalidValueError, match="`drop_last` True, not False; train it without"):
        train(_config(few, out, branch_from=str(tmp_path / "dropping")), quiet=True)
    with pytest.raises(NotFoundError, match="; train the run with `keep_checkpoint`"):
        train(_config(few, out, branch_from=str(tmp_path)), quiet=True)
    with pytest.raises(InvalidValueError, match="has `model` tiny, not resnet20"):
        train(_config(few, out, branch_from=str(trunk), model="resnet20"), quiet=True)
    with pytest.raises(InvalidValueError, match="has `seed` 0, not 1"):
        train(_config(few, out, branch_from=str(trunk), seed=1), quiet=True)
    with pytest.raises(InvalidValueError, match="`branch_from` does not work with `dynamic`"):
        check(_config(few, out, branch_from=str(trunk), record_dynamics=True))
    with pytest.raises(InvalidValueError, match="`branch_from` does not work with a pruner"):
        train(_config(few, out, branch_from=str(trunk)), pruner=make_pruner("infobatch"))
    assert not out.exists()
