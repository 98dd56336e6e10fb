"""The command that `thresher plan` prints watches its target on images that it does not test on."""

import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scaling_profiles import digits_profile

from planted import ArraySource
from thresher.data.pack import Pack
from thresher.data.write import write_pack
from thresher.scaling.plan import PlanConfig, plan

sys.path.append(str(Path(__file__).parent.parent / "study"))
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401

Run = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.slow  # trains pilots


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanConfig:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="tiny").save(profile)
    return PlanConfig(
        cluster="summit", pilot_epochs=1, pilot_seeds=1, profile=profile, max_workers=1
    )


def test_the_target_is_reached_on_images_held_out_as_by_the_pilots(
    config: PlanConfig, tmp_path: Path, thresher: Run
) -> None:
    few = make_pack(tmp_path)
    config = dataclasses.replace(config, data=few, target_accuracy=0.8, pilot_epochs=15)
    made = plan(config)
    train = len(Pack.open(few).indices("train"))
    assert made.samples_to_target == "measured"
    assert made.pilot is not None
    watched = f"--validation {train - made.pilot.train_samples} --target-accuracy 0.8"
    assert watched in made.command
    assert made.schedule is not None
    assert watched in made.schedule.command
    best = made.recommended
    assert best.epochs == pytest.approx(best.samples / made.pilot.train_samples)
    words = shlex.split(made.command)
    assert (words[0], words[-1]) == ("thresher", "RUN")
    done = thresher(*words[1:-1], tmp_path / "run", "--threads", 1)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "target"
    assert result["validation_accuracy"] >= 0.8
    assert result["resolved"]["samples"] == made.pilot.train_samples


@pytest.mark.parametrize(("split", "target"), [("validation", 0.9), ("test", None)])
def test_nothing_is_held_out_of_a_pack_with_a_validation_split_or_without_a_target(
    config: PlanConfig, tmp_path: Path, split: str, target: float | None
) -> None:
    few = Pack.open(make_pack(tmp_path))
    splits = np.full(len(few), "train", object)
    splits[few.indices("test")] = "test"
    splits[few.indices("test")[::2]] = split
    images, ids = few.images(np.arange(len(few))), few.ids.to_pylist()
    source = ArraySource(images, few.labels, splits.tolist(), ids, few.classes)
    write_pack(source, tmp_path / "pack")
    data = str(tmp_path / "pack")
    made = plan(dataclasses.replace(config, data=data, target_accuracy=target))
    assert "--validation" not in made.command
    assert ("--target-accuracy" in made.command) == (target is not None)
    train = len(few.indices("train"))
    assert made.recommended.epochs == pytest.approx(made.recommended.samples / train)
