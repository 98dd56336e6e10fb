"""The runs of pilots: their batch sizes, rates, seeds and where they are kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from thresher.data.pack import Pack
from thresher.scaling.pilot import PilotConfig, run_pilot
from thresher.scaling.pilot_runs import cached_run, stable_runs
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(digits: Path) -> TrainConfig:
    return TrainConfig(
        data=str(digits), model="tiny", epochs=0.1, batch_size=64, resume=True, out="", threads=1
    )


@pytest.mark.slow  # trains eleven pilots
def test_batches_reach_as_far_as_the_data_and_the_last_seed_measures_the_noise(
    digits: Path, home: Path
) -> None:
    """Digits have 1,437 training images: four pilots from batch 4 on, three from batch 16 on."""
    config = PilotConfig(data=str(digits), pilot_epochs=1, pilot_seeds=2, pilot_batch=4)
    pilot = run_pilot(config)
    assert pilot.batches == (4, 16, 64, 256)
    measures = {
        (result.config.batch_size, result.config.seed)
        for result in map(RunResult.load, pilot.folders)
        if result.config.noise_scale
    }
    assert measures == {(batch, 1) for batch in pilot.batches}
    assert pilot.noise_curve
    # The runs with which rates were tuned are not trained again: 3 × 3, of which 3 are seed 0.
    assert len(list((home / "pilots").iterdir())) == 4 * 2 + 3 * 2


@pytest.mark.slow  # trains eight pilots
def test_fewer_batches_where_the_data_are_few(digits: Path, home: Path) -> None:
    pilot = run_pilot(PilotConfig(data=str(digits), pilot_epochs=1, pilot_seeds=1, pilot_batch=16))
    assert pilot.batches == (16, 64, 256)
    assert pilot.noise_curve


def test_a_rate_with_which_a_seed_diverges_gives_way_to_the_next(
    digits: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    results = stable_runs(run(digits), [1e30, 0.03], [0, 1], Pack.open(digits))
    assert [result.config.lr for result in results] == [0.03, 0.03]
    assert "diverged at rate 1e+30 and batch 64: the next rate is tried" in caplog.text


def test_a_whole_number_of_epochs_is_the_same_as_a_fraction(digits: Path, home: Path) -> None:
    pack = Pack.open(digits)
    whole, fraction = (replace(run(digits), epochs=epochs, batch_size=512) for epochs in (1, 1.0))
    assert cached_run(whole, pack).config.out == cached_run(fraction, pack).config.out
