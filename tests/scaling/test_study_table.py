"""Studies as `plan --from`: runs are compared only where they were trained alike."""

import dataclasses
import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scaling_profiles import digits_profile

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.cli.parse import parse
from thresher.cli.plan import plan as plan_command
from thresher.cli.train import Train
from thresher.cli.train import train as train_command
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError
from thresher.paths import RunPaths, StudyPaths, read_json, write_json
from thresher.scaling.batch_table import check_data, read_batch_table
from thresher.scaling.plan import PlanConfig, plan
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult, TargetReached
from thresher.training.split import split_samples
from thresher.training.train import train


@pytest.fixture(scope="module")
def finished(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    out = tmp_path_factory.mktemp("run") / "run"
    config = TrainConfig(data=str(digits), out=str(out), model="tiny", epochs=0.2, threads=1)
    return train(config, quiet=True)


class StudyFolder:
    """A folder with the results of trials, each a copy of a real one with other numbers."""

    def __init__(self, root: Path, run: RunResult) -> None:
        self.root, self.run, self.count = root, run, 0

    def add(self, batch: int, samples: int | None, lr: float = 0.1, **more: Any) -> None:
        run = self.run
        result = dataclasses.replace(
            run,
            config=dataclasses.replace(
                run.config,
                batch_size=batch,
                lr=lr,
                seed=self.count,
                target_accuracy=0.9,
                **more,
            ),
            resolved=dataclasses.replace(run.resolved, global_batch=batch, peak_lr=lr),
            time_to_target=None if samples is None else TargetReached(1.0, samples, 1),
        )
        folder = RunPaths(StudyPaths(self.root).trials / f"trial-{self.count}")
        folder.root.mkdir(parents=True)
        folder.result.write_text(json.dumps(result.to_dict()))
        self.count += 1


@pytest.fixture
def study(tmp_path: Path, finished: RunResult) -> StudyFolder:
    return StudyFolder(tmp_path / "study", finished)


def test_the_best_rate_of_each_batch_is_read_from_a_study(
    study: StudyFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for samples in (1000, 1100):
        study.add(16, samples, lr=0.1)
    for samples in (3000, 3000):
        study.add(16, samples, lr=0.01)
    # Fewer samples, but only one of the two runs reached the target.
    study.add(64, 500, lr=1.0)
    study.add(64, None, lr=1.0)
    for samples in (1500, 1600):
        study.add(64, samples, lr=0.3)
    study.add(256, 4000)
    study.add(256, None)
    study.add(1024, None)
    rows = read_batch_table(study.root)
    assert sorted((row.batch, row.samples, row.lr) for row in rows) == [
        (16, 1000, 0.1),
        (16, 1100, 0.1),
        (64, 1500, 0.3),
        (64, 1600, 0.3),
        (256, 4000, 0.1),
    ]
    assert {row.target for row in rows} == {"0.9"}
    assert "1 of 2 runs at batch 256 did not reach the target 0.9" in caplog.text
    plan = plan_command(PlanConfig(from_=study.root))
    assert plan.data["fit"]["target"] == "0.9"


def test_runs_of_fewer_epochs_are_not_repeats(study: StudyFolder) -> None:
    for batch in (16, 64):
        for samples in (2000, None):  # left over from a study whose epochs were raised
            study.add(batch, samples, epochs=2.0)
        for samples in (1000, 1100):
            study.add(batch, samples, epochs=10.0)
    rows = read_batch_table(study.root)
    assert [row.samples for row in rows] == [1000, 1100] * 2


def test_a_study_that_varies_the_model_is_refused(study: StudyFolder) -> None:
    study.add(16, 1000)
    study.add(64, 1500, model="resnet20")
    with pytest.raises(InvalidValueError, match="differ in model: tiny and resnet20"):
        read_batch_table(study.root)


def test_a_study_whose_runs_were_evaluated_differently_is_refused(study: StudyFolder) -> None:
    """A run that is evaluated every five epochs reaches its target up to four epochs late."""
    study.add(16, 1000)
    study.add(64, 1500)
    study.add(64, 2500, evaluate_every=5)
    with pytest.raises(InvalidValueError, match="differ in evaluate_every: 1 and 5"):
        read_batch_table(study.root)


def test_a_study_of_runs_that_change_their_batch_is_refused(study: StudyFolder) -> None:
    for batch in (16, 64):
        study.add(batch, 1000, batch_schedule="double@1")
    with pytest.raises(InvalidValueError, match="no single batch size"):
        read_batch_table(study.root)


def test_a_study_of_other_data_is_refused(
    study: StudyFolder, digits: Path, finished: RunResult
) -> None:
    for batch in (16, 64):
        study.add(batch, 1000)
    begun = read_json(RunPaths(Path(finished.config.out)).config, "run")
    config = PlanConfig(from_=study.root, data=str(digits), cluster="summit", max_workers=1)
    for fingerprint, accepted in ((begun["data"]["fingerprint"], True), ("0" * 64, False)):
        begun["data"] |= {"name": "letters", "fingerprint": fingerprint}
        write_json(StudyPaths(study.root).trials / "trial-1" / "run.json", begun)
        if accepted:
            check_data(study.root, Pack.open(digits))
            continue
        with pytest.raises(InvalidValueError, match=r"were trained on letters, whose .* of digits"):
            plan(config)


@pytest.mark.parametrize(("validation", "held"), [(200.0, 200), (0.1, 144), (None, None)])
def test_a_planned_run_holds_out_what_the_runs_of_the_study_did(
    study: StudyFolder, digits: Path, tmp_path: Path, validation: float | None, held: int | None
) -> None:
    """It would watch its target on the test images, and count the epochs of other samples."""
    for batch, samples in ((16, 20_000), (64, 24_000), (256, 40_000)):
        study.add(batch, samples, validation=validation)
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="tiny").save(profile)
    config = PlanConfig(
        from_=study.root, data=str(digits), cluster="summit", profile=profile, max_workers=1
    )
    assert "--validation" not in plan(config).command  # without a target nothing is watched
    made = plan(dataclasses.replace(config, target_accuracy=0.9))
    watched = "" if held is None else f" --validation {held}"
    assert f"--precision fp32{watched} --target-accuracy 0.9" in made.command
    best = made.recommended
    assert best.epochs == pytest.approx(best.samples / (1437 - (held or 0)))
    assert "Recommended: 1 worker, batch" in str(plan_command(config).text)


def test_a_planned_run_is_trained_as_the_runs_of_the_study(
    study: StudyFolder, digits: Path, tmp_path: Path
) -> None:
    """Their samples are those of AdamW at a constant rate; SGD would diverge at such a rate."""
    kept = Pack.open(digits)
    labels = kept.labels[kept.indices("train")]
    keep, path = np.arange(len(labels)) % 2 == 0, tmp_path / "my half.parquet"
    selection = Selection(
        ids=kept.ids.take(kept.indices("train")).to_pylist(),
        labels=labels,
        keep=keep,
        score=np.zeros(len(labels)),
        reason=[""] * len(labels),
        fingerprint=kept.fingerprint,
    )
    selection.save(path)
    options: dict[str, Any] = {
        "optimizer": "adamw",
        "schedule": "step",
        "step_epochs": (3.0, 5.5),
        "flip": False,
        "drop_last": True,
        "selection": str(path),
        "validation": 0.1,
        "split_seed": 3,
    }
    for batch, samples in ((16, 20_000), (64, 24_000), (256, 40_000)):
        study.add(batch, samples, lr=0.001, momentum=1 - 1 / batch, **options)
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="tiny").save(profile)
    config = PlanConfig(
        from_=study.root,
        data=str(digits),
        cluster="summit",
        profile=profile,
        max_workers=1,
        target_accuracy=0.9,
    )
    made = plan(config)
    words = shlex.split(made.command)
    assert words[:2] == ["thresher", "train"]
    planned, _ = parse("train", Train, train_command, words[2:])
    for name, value in options.items():
        assert getattr(planned, name) == (144 if name == "validation" else value), name
    best = made.recommended.batch_size
    near = min((16, 64, 256), key=lambda batch: abs(math.log(batch / best)))
    assert planned.momentum == 1 - 1 / near
    trained = split_samples(planned, kept).count
    assert made.recommended.epochs == pytest.approx(made.recommended.samples / trained)
    with pytest.raises(InvalidValueError, match="trained tiny, not resnet20"):
        plan(dataclasses.replace(config, model="resnet20", profile=None))


def test_a_study_of_commands_is_refused_in_a_sentence(study: StudyFolder) -> None:
    folder = RunPaths(StudyPaths(study.root).trials / "trial")
    folder.root.mkdir(parents=True)
    folder.result.write_text(json.dumps({"accuracy": 0.9}))
    with pytest.raises(InvalidValueError, match="is the trial of a command, whose batch size"):
        read_batch_table(study.root)
