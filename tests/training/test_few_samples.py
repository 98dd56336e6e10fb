"""Runs on a handful of images: what is measured, and what cannot be."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted import ArraySource
from thresher.cli.main import main
from thresher.data.pack import Pack
from thresher.data.split import HoldOut
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, read_run_json
from thresher.training.config import TrainConfig
from thresher.training.train import train


def _pack(out: Path, count: int, others: str = "train") -> Path:
    """Write a pack of so many samples, an eighth of them in the split `others`."""
    splits = [others if number % 8 == 7 else "train" for number in range(count)]
    images = np.random.default_rng(0).integers(0, 255, (count, 8, 8, 1), dtype=np.uint8)
    ids = [str(number) for number in range(count)]
    source = ArraySource(images, np.arange(count) % 2, splits, ids, ["a", "b"])
    write_pack(source, out, WriteOptions(processes=1))
    return out


@pytest.mark.parametrize(("count", "held"), [(1, 0), (3, 1), (40, 4)])
def test_a_share_of_few_samples_is_at_least_one(tmp_path: Path, count: int, held: int) -> None:
    pack = Pack.open(_pack(tmp_path / "pack", count))
    assert HoldOut().mask(pack).sum() == HoldOut(0.1).mask(pack).sum() == held
    assert HoldOut(0.0).mask(pack).sum() == 0


@pytest.mark.parametrize("target", [{"target_accuracy": 0.5}, {"target_loss": 1.0}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_target_without_images_to_measure_it_on_is_refused(
    tmp_path: Path, target: dict[str, Any], workers: int
) -> None:
    data, out = str(_pack(tmp_path / "pack", 4)), tmp_path / "run"
    config = TrainConfig(data=data, out=str(out), validation=0, batch_size=4, workers=workers)
    (name,) = target
    with pytest.raises(InvalidValueError, match=f"`{name}` needs validation or test images"):
        train(TrainConfig.from_dict({**config.to_dict(), **target}), quiet=True)
    assert not out.exists()


def test_options_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    """As a loop over an array gives them; `run.json` holds them, and what follows from them."""
    data, out = str(_pack(tmp_path / "pack", 8)), str(tmp_path / "run")
    numbers: Any = {"batch_size": np.int64(4), "lr": np.float32(0.125), "epochs": np.int8(1)}
    config = TrainConfig(data=data, out=out, model="tiny", validation=0, **numbers)
    assert train(config, quiet=True).steps == 2
    written = read_run_json(RunPaths(Path(out)).config, "run")["config"]
    assert (written["batch_size"], written["lr"], written["epochs"]) == (4, 0.125, 1)


@pytest.mark.parametrize(
    ("split", "held", "measured"),
    [
        ("test", "0", ["test"]),
        ("validation", "0", ["validation"]),
        ("validation", "2", ["validation", "held-out"]),
        ("test", "2", ["test", "validation"]),
    ],
)
def test_the_last_lines_name_the_split_of_each_accuracy(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    split: str,
    held: str,
    measured: list[str],
) -> None:
    data = str(_pack(tmp_path / "pack", 16, split))
    options = {"--data": data, "--model": "tiny", "--epochs": "1", "--out": str(tmp_path / "run")}
    arguments = [word for pair in options.items() for word in pair]
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments, "--batch-size", "4", "--validation", held])
    assert ended.value.code == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert [part.split(" accuracy")[0] for part in first.split(", ")] == measured
