"""`thresher train --config`: options from a file; `--output`; `--fail-on-diverged`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.cli.parse import parse
from thresher.cli.train import Train, train
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig

Run = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ["--epochs", "1", "--device", "cpu", "--threads", "1", "--evaluate-every", "0"]


def _parsed(*arguments: object) -> Any:
    return parse("train", Train, train, [str(argument) for argument in arguments])[0]


def test_flags_win_over_the_file_and_the_file_over_the_model(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    text = 'data = "digits"\nout = "A"\nmodel = "fast-cifar"\nlr = 1\nmomentum = 0.5\n'
    file.write_text(text, encoding="utf-8-sig")  # editors of Windows write a byte order mark
    given = _parsed("--config", file, "--out", "B", "--momentum", 0.25)
    assert (given.data, given.out, given.model) == ("digits", "B", "fast-cifar")
    assert (given.lr, given.momentum, given.optimizer) == (1.0, 0.25, "muon")
    loaded = TrainConfig.load(file, out="B", momentum=0.25)
    assert all(getattr(given, name) == value for name, value in vars(loaded).items())


@pytest.mark.parametrize("joined", [True, False])
def test_the_folder_of_a_trial_holds_equals_signs(joined: bool, tmp_path: Path) -> None:
    file = tmp_path / "lr=0.5,seed=0" / "run.toml"
    file.parent.mkdir()
    file.write_text('data = "digits"\nlr = 0.5\n')
    (tmp_path / "lr").write_text('data = "another"\nlr = 0.25\n')  # up to the first of them
    given = _parsed(*([f"--config={file}"] if joined else ["--config", file]), "--out", "B")
    assert (given.data, given.lr) == ("digits", 0.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.toml", "bach_size = 3", 'unknown option "bach_size" .in .*; did you mean "batch_si'),
        ("run.toml", 'batch_size = "many"', "batch_size must be an integer, got 'many' .in "),
        ("run.toml", "lr = -1.0", "lr must be "),
        ("run.toml", "lr = [", "run.toml is not a configuration: "),
        ("run.json", "{", "run.json is not a configuration; give a TOML or JSON file"),
        ("run.json", "[1]", "run.json must hold a table of options"),
        ("run.json", '{"format": 99, "config": {}}', "was written by a newer version"),
        ("other.toml", None, "there is no configuration at "),
    ],
)
def test_a_bad_file_is_one_sentence(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ThresherError, match=message):
        _parsed("--config", tmp_path / name, "--data", "digits", "--out", "A")


@pytest.mark.parametrize("spelt", ["--step-epochs", "--step_epochs"])
def test_a_list_is_split_at_commas(spelt: str) -> None:
    for words in ([spelt, "1,2"], [f"{spelt}=1,2"], [spelt, "1", "2"]):
        assert _parsed("--data", "digits", "--out", "B", *words).step_epochs == (1.0, 2.0)


@pytest.mark.parametrize("spelt", [["--output", "B"], ["--output-dir=B"], ["--output_dir", "B"]])
def test_out_is_also_called_output(spelt: list[str]) -> None:
    assert _parsed("--data", "digits", *spelt).out == "B"


@pytest.mark.slow  # two runs
def test_the_configuration_of_a_run_repeats_it(thresher: Run, digits: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    done = thresher("train", "--data", digits, "--output-dir", first, "--lr", 0.02, *QUICK)
    assert done.returncode == 0, done.stderr
    again = thresher("train", "--config", first / "run.json", "--out", second)
    assert again.returncode == 0, again.stderr
    weights = [(run / "model.safetensors").read_bytes() for run in (first, second)]
    assert weights[0] == weights[1]
    saved = json.loads((second / "run.json").read_text())["config"]
    assert (saved["lr"], saved["out"]) == (0.02, str(second))
    assert "fail_on_diverged" not in saved
    assert "config" not in saved


@pytest.mark.slow  # two runs
def test_a_run_that_diverges_fails_on_request(thresher: Run, digits: Path, tmp_path: Path) -> None:
    words = ("train", "--data", digits, "--lr", "1e30", *QUICK, "--json")
    quiet = thresher(*words, "--out", tmp_path / "a")
    assert (quiet.returncode, json.loads(quiet.stdout)["status"]) == (0, "diverged")
    strict = thresher(*words, "--out", tmp_path / "b", "--fail-on-diverged")
    assert (strict.returncode, json.loads(strict.stdout)["status"]) == (3, "diverged")
