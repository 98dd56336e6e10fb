import dataclasses
import json
import math
import re
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
from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.paths import RunPaths, StudyPaths, read_json, write_json
from thresher.scaling.batch_plan import plan_batches
from thresher.scaling.batch_table import BatchRow, check_data, read_batch_table
from thresher.scaling.plan import PlanConfig, plan
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult, TargetReached
from thresher.training.split import split_samples
from thresher.training.train import train

GOOD = "batch,samples\n16,1000\n64,1400\n256,3000\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_columns_without_effect_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_batch_table(write(tmp_path, "batch,samples,learning_rate\n16,1000,0.1\n64,1400,0.2\n"))
    assert "learning_rate of" in caplog.text
    assert "has no effect; columns are batch," in caplog.text


def test_counts_of_every_kind_give_samples(tmp_path: Path) -> None:
    def read(text: str, per_epoch: float | None = None) -> list[float]:
        return [row.samples for row in read_batch_table(write(tmp_path, text), per_epoch)]

    assert read("batch,samples\n8,100\n16,200\n") == [100, 200]
    assert read("Batch_Size, steps\n8,100\n16,200\n") == [800, 3200]
    assert read("batch,epochs\n8,1.5\n16,2\n", 1000) == [1500, 2000]
    assert read("batch,epochs,samples_per_epoch\n8,1.5,10\n16,2,10\n", 1000) == [15, 20]
    # Samples are the most exact.
    assert read("epochs,steps,samples,batch\n1,2,3,8\n1,2,4,16\n") == [3, 4]


def test_optional_columns_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    text = "batch,samples,target,runs,lr,seed\n8,100,0.750,3,0.1,a\n16,200,.75,,,b\n"
    path.write_text(text, encoding="utf-8-sig")
    assert read_batch_table(path) == [
        BatchRow(8, 100, "0.75", 3, 0.1),
        BatchRow(16, 200, "0.75", 1, None),
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_of_spreadsheets_are_read(tmp_path: Path, separator: str) -> None:
    text = ",batch,samples,lr\n0,8,100,0.1\n\n1,16,200\n,,,\n,,,,\n"
    path = write(tmp_path, text.replace(",", separator))
    assert read_batch_table(path) == [BatchRow(8, 100, lr=0.1), BatchRow(16, 200)]


BAD = {
    "batch,samples\n": "has 0 rows; the fit needs two batch sizes or more",
    "": "is not a CSV file: it has no header",
    "batch,epochs,lr\n32,9,1,0,02\n": "line 2 of .* has 5 values, but the header has 3; write dec",
    "batch,samples,batch\n32,9,1\n": 'has two columns "batch"',
    "batch,samples\n16,1000\n": "has 1 row; the fit needs two batch sizes or more",
    "batch,samples\n16,1000\n16,1100\n": "has rows of one batch size only",
    "batch,samples\n16,-5\n64,10\n": r"line 2: samples must be in \[1e-06, 1e\+18\], got -5",
    "batch,samples\n-16,5\n64,10\n": r"line 2: batch must be in \[1, 1e\+09\], got -16",
    "batch,samples\n16,5\n64,many\n": 'line 3: samples must be a number, got "many"',
    "batch,samples\n16,5\n64,\n": "line 3: samples must be a number, it is empty",
    "batch,samples\n16,5\n64\n": "line 3: samples must be a number, it is empty",
    "batch,samples\n16,5\n64,nan\n": "line 3: samples must be in .*, got nan",
    "batch,samples\n16,5\n64,inf\n": "line 3: samples must be in .*, got inf",
    "batch,samples\n16,5\n64,1e300\n": "line 3: samples must be in .*, got 1e300",
    "batch,samples\n16.5,5\n64,9\n": "line 2: batch must be an integer, got 16.5",
    "batch,samples,lr\n16,5,x\n64,9,1\n": 'line 2: lr must be a number, got "x"',
    "size,samples\n16,5\n64,9\n": "has no column batch; its columns are size, samples",
    "batch,loss\n16,5\n64,9\n": "has no column samples, steps or epochs; add one of them",
    "batch,epochs\n16,5\n64,9\n": "line 2: the samples of an epoch are not known",
    "batch,samples,target\n16,5,0.8\n64,9,\n": "has a target in 1 of its 2 rows",
    "batch,samples,target\n16,5,0.8\n64,9,0.9\n": "no target in .* has rows of two batch sizes",
    "batch,samples\n16,1000\n16,9000\n64,2000\n64,12000\n": "lines 2 and 3: batch 16 needs 1,000 "
    "and 9,000 samples, which cannot be one target; add a column",
    "batch,samples,target\n16,99999,.5\n64,2000,.5\n16,1000,.5\n": "lines 2 and 4: batch 16 needs "
    "99,999 and 1,000 samples, which cannot be repeats of the target 0.5; remove the wrong row",
    "batch,samples\n0,1000\n64,2000\n": r"line 2: batch must be in \[1, 1e\+09\], got 0",
    "batch,samples\n16,1000\n1e12,2000\n": "line 3: batch must be in .*, got 1e12",
    "batch,samples\n16,1000\n64,1e-17\n": "line 3: samples must be in .*, got 1e-17",
    "batch,samples,runs\n16,1000,3\n64,2000,1e-9\n": "line 3: runs must be in .*, got 1e-9",
    "batch,samples,lr\n16,1000,1e12\n64,2000,1\n": "line 2: lr must be in .*, got 1e12",
    "batch,epochs\n16,0\n64,2\n": "line 2: epochs must be in .*, got 0",
    "batch,batch_size,samples\n16,16,9\n64,32,9\n": "line 3: batch is 64, but batch_size 32",
    'batch,samples\n16,"5\n64,9\n': "is not a CSV file",
}


@pytest.mark.parametrize("text", BAD, ids=[message[:40] for message in BAD.values()])
def test_bad_tables_are_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidValueError, match=BAD[text]):
        plan_command(PlanConfig(from_=write(tmp_path, text)))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nothing\.csv not found"):
        read_batch_table(tmp_path / "nothing.csv")
    with pytest.raises(NotFoundError, match="holds no run that reached a target"):
        read_batch_table(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    with pytest.raises(InvalidValueError, match="is not a CSV file"):
        read_batch_table(tmp_path / "bytes.csv")


def test_the_command_prints_the_fit(tmp_path: Path) -> None:
    outcome = plan_command(PlanConfig(from_=write(tmp_path, GOOD)))
    data = json.loads(json.dumps(outcome.data))
    keys = {"e_min", "s_min", "b_crit", "b_crit_low", "b_crit_high", "residuals"}
    assert keys <= set(data["fit"])
    assert len(data["fit"]["residuals"]) == 3
    assert data["recommended"]["batch_size"] in {row["batch_size"] for row in data["rows"]}
    assert "critical batch" in data["recommended"]["reason"]
    assert "Recommended: batch" in outcome.text


@pytest.mark.parametrize(
    ("growth", "reason", "fit"),
    [
        (0, "the critical batch is above 256; larger batches .* no more samples", "samples at"),
        (1, "the critical batch is below 32; larger batches .* no fewer steps", "steps at"),
    ],
)
@pytest.mark.parametrize("batches", [(32, 256), (32, 64, 128, 256)])
def test_a_table_without_a_bend_has_no_critical_batch(
    tmp_path: Path, batches: tuple[int, ...], growth: int, reason: str, fit: str
) -> None:
    """The end of the search was printed as an estimate, with the effect that it would have."""
    rows = [f"{batch},{5000 * (batch // 32) ** growth}" for batch in batches]
    table = write(tmp_path, "\n".join(["batch,samples", *rows]))
    text = plan_command(PlanConfig(from_=table)).text
    assert re.search(f"Reason: {reason}", text)
    assert re.search(rf"Fit: [\d,]+ {fit} every batch size, residuals to 0\.\d %\.", text)
    for made_up in ("25,600", "0.32", "% as effective", "exactly"):
        assert made_up not in text
    assert text.count("samples do not grow") + text.count("grow in proportion") == 1


def test_a_plan_from_a_table_without_a_bend_names_no_critical_batch(
    tmp_path: Path, digits: Path
) -> None:
    table = write(tmp_path, "batch,samples\n16,20000\n64,20000\n256,20000\n")
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="tiny").save(profile)
    config = PlanConfig(
        from_=table, data=str(digits), cluster="summit", profile=profile, max_workers=1
    )
    reason = plan(config).reason
    assert reason.startswith(
        "samples do not grow from batch 16 to 256: the critical batch is above"
    )
    assert "as effective" not in reason


def test_rows_of_a_target_with_one_batch_size_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = write(tmp_path, "batch,samples,target\n32,1000,0.75\n64,1200,.75\n128,1500,75%\n")
    assert [point.batch for point in plan_batches(table).fit.points] == [32, 64]
    assert f"target 75% of {table} has only batch 128 and is left out" in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("figure", Path("f.png")),
        ("budget", "3h"),
        ("profile", Path("p.json")),
        ("cluster", "summit"),
    ],
)
def test_options_on_times_need_data_and_a_plan_needs_either(
    tmp_path: Path, option: str, value: Any
) -> None:
    config = PlanConfig(**{option: value})
    with pytest.raises(ThresherError, match=f"`{option}` needs times"):
        plan_command(dataclasses.replace(config, from_=write(tmp_path, GOOD)))
    with pytest.raises(ThresherError, match="data is required"):
        plan_command(config)


# ---- a study's folder -------------------------------------------------------------------------


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


def test_a_network_with_settings_of_its_own_is_planned_from_a_table_only(
    digits: Path, tmp_path: Path
) -> None:
    """Pilots train with SGD, and `thresher train` trains fast-cifar with Muon and rates for it."""
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="fast-cifar").save(profile)
    config = PlanConfig(
        data=str(digits),
        model="fast-cifar",
        cluster="summit",
        profile=profile,
        max_workers=1,
        target_accuracy=0.9,
    )
    with pytest.raises(InvalidValueError, match="pilots do not train fast-cifar with the settings"):
        plan(config)
    rows = GOOD.replace("\n", ",0.9\n").replace("samples,0.9", "samples,target")
    made = plan(dataclasses.replace(config, from_=write(tmp_path, rows)))
    assert made.command.endswith("--target-accuracy 0.9 --evaluate-every 1 --out RUN")


def test_a_study_of_commands_is_refused_in_a_sentence(study: StudyFolder) -> None:
    folder = RunPaths(StudyPaths(study.root).trials / "trial")
    folder.root.mkdir(parents=True)
    folder.result.write_text(json.dumps({"accuracy": 0.9}))
    with pytest.raises(InvalidValueError, match="is the trial of a command, whose batch size"):
        read_batch_table(study.root)
