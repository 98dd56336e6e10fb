"""The runs of pilots: their batch sizes, rates, seeds and where they are kept."""

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planted import ArraySource
from thresher.data.pack import Pack
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError
from thresher.paths import home
from thresher.scaling import pilot
from thresher.scaling.pilot import PilotConfig, run_pilot
from thresher.scaling.pilot_runs import cached_run, speed_of, stable_runs
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

sys.path.append(str(Path(__file__).parent.parent / "study"))
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return 240 training images, whose pilots have 1, 2, 4 and 8 times the smallest batch."""
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(pilot, "RATIOS", (2, 4, 8))
    return make_pack(tmp_path)


def run(data: str) -> TrainConfig:
    return TrainConfig(
        data=data, model="tiny", epochs=0.5, batch_size=64, resume=True, out="", threads=1
    )


@pytest.mark.slow  # trains fourteen pilots
def test_the_last_seed_of_each_batch_measures_the_noise(few: str, tmp_path: Path) -> None:
    config = PilotConfig(
        data=few, pilot_epochs=1, pilot_seeds=2, pilot_batch=6, target_accuracy=0.01
    )
    made = run_pilot(config)
    assert made.batches == (6, 12, 24, 48)
    measures = {
        (result.config.batch_size, result.config.seed)
        for result in map(RunResult.load, made.folders)
        if result.config.noise_scale
    }
    assert measures == {(batch, 1) for batch in made.batches}
    # The runs with which rates were tuned are not trained again: 3 × 3, of which 3 are seed 0.
    assert len(list((tmp_path / "home" / "pilots").iterdir())) == 4 * 2 + 3 * 2


@pytest.mark.slow  # trains up to ten pilots
@pytest.mark.parametrize(
    ("batch", "target", "batches"),
    [(12, 0.01, (12, 24, 48)), (6, None, (6, 12, 24)), (6, 0.9, (6, 12, 24))],
    ids=["few data", "no target", "not reached"],
)
def test_pilots_at_three_batches(
    few: str, batch: int, target: float | None, batches: tuple[int, ...]
) -> None:
    """A fourth that does not reach the target would leave only a guess."""
    config = PilotConfig(
        data=few, pilot_epochs=1, pilot_seeds=1, pilot_batch=batch, target_accuracy=target
    )
    made = run_pilot(config)
    assert made.batches == batches
    # The only seed measures the noise, which takes time: the speed is that of another run.
    own = [path for path in home().joinpath("pilots").glob(f"*-{batch}-*")]
    plain = [run for run in map(RunResult.load, own) if not run.config.noise_scale]
    assert [run.images_per_s for run in plain] == [made.images_per_s]


def test_a_rate_with_which_a_seed_diverges_gives_way_to_the_next(
    few: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    results = stable_runs(run(few), [1e30, 0.03], [0, 1], Pack.open(few))
    assert [result.config.lr for result in results] == [0.03, 0.03]
    assert "diverged at rate 1e+30 and batch 64: trying the next rate" in caplog.text


def test_two_that_want_the_same_pilot_train_it_one_after_the_other(
    few: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one had ended with an error: another run is writing to that folder."""
    now, most = [], []

    def slow(config: TrainConfig, quiet: bool) -> None:
        now.append(config.out)
        time.sleep(0.05)
        most.append(len(now))
        now.remove(config.out)

    monkeypatch.setattr("thresher.training.train.train", slow)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: cached_run(run(few), Pack.open(few)), range(3)))
    assert most == [1, 1, 1]


def test_a_speed_of_another_machine_does_not_count(few: str) -> None:
    """Nodes of a cluster share the home folder: one with a GPU has the pilots of one without."""
    pack, plain = Pack.open(few), run(few)
    made = cached_run(plain, pack)
    assert speed_of([made], plain, pack) == made.images_per_s
    twin = replace(made, hardware={**made.hardware, "host": "node7"})
    assert speed_of([twin], plain, pack) == made.images_per_s
    slow = replace(made, hardware={**made.hardware, "processor": "8086"}, images_per_s=1e-3)
    speed = speed_of([slow], plain, pack)
    assert speed > 1e-3
    assert speed_of([slow], plain, pack) == speed, "measured once"


def test_a_whole_number_of_epochs_is_the_same_as_a_fraction(few: str) -> None:
    pack = Pack.open(few)
    whole, fraction = (replace(run(few), epochs=epochs, batch_size=128) for epochs in (1, 1.0))
    assert cached_run(whole, pack).config.out == cached_run(fraction, pack).config.out


def test_too_few_images_for_pilots(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "RATIOS", (16, 64, 256))
    held_out = "at least 256 training samples beside the 15 % that it holds out, .* has 204"
    with pytest.raises(InvalidValueError, match=held_out):
        run_pilot(PilotConfig(data=few, target_accuracy=0.5))


def test_pilots_of_other_splits_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprint of a pack does not tell its splits apart."""
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    images, ids = np.zeros((12, 8, 8, 1), np.uint8), [str(n) for n in range(12)]
    runs = []
    for split in ("train", "test"):
        splits = [split, *["train"] * 10, "test"]
        source = ArraySource(images, np.arange(12) % 2, splits, ids, ["a", "b"])
        pack = write_pack(source, tmp_path / "pack")
        config = TrainConfig(
            data=str(pack.root), model="tiny", epochs=1, batch_size=4, resume=True, out=""
        )
        runs.append(cached_run(config, pack).config.out)
        shutil.rmtree(pack.root)
    assert runs[0] != runs[1]


NETWORK = """
from torch import nn

def net(classes, channels):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear({width}), nn.ReLU(), nn.LazyLinear(classes))
"""


def test_a_network_that_was_changed_is_trained_again(
    few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    made = replace(run(few), model="pilot_networks:net", device="cpu")
    folders = []
    for width in (8, 16, 8):
        (tmp_path / "pilot_networks.py").write_text(NETWORK.format(width=width))
        sys.modules.pop("pilot_networks", None)
        folders.append(cached_run(made, Pack.open(few)).config.out)
    assert folders[0] == folders[2] != folders[1]
