"""`study run` finds bad inputs before the first trial: exit code 2, and nothing is written."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from few_digits import make_pack

from planted import ArraySource
from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError, ThresherError
from thresher.models.registry import build
from thresher.paths import SelectionPaths, write_text
from thresher.study import reading
from thresher.study.analysis import analyse
from thresher.study.study import Study
from thresher.study.toml import dumps

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_pack(tmp_path_factory.mktemp("packs"))


def content(pack: str, **changes: Any) -> dict[str, Any]:
    base = {"data": pack, "epochs": 1, "batch_size": 48, "device": "cpu"}
    return {"seeds": 1, "base": {**base, **changes.pop("base", {})}, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {"data": "no/such/pack"}}, "no/such/pack"),
        ({"base": {"selection": "no/such.parquet"}}, "no/such.parquet"),
        (
            {"base": {"weights": "no/such.safetensors"}},
            "weights no/such.safetensors not found; check the path; relative paths begin in .*",
        ),
        (
            {
                "grid": {"selection": ["x"]},
                "steps": {"x": {"do": "select", "filter": "network", "features": "no/such"}},
            },
            r"\[steps.x\]: features no/such not found",
        ),
        (
            {
                "grid": {"selection": ["x"]},
                "steps": {"x": {"do": "select", "filter": "random", "like": "no/such.parquet"}},
            },
            r"\[steps.x\]: .*no/such.parquet",
        ),
        (
            {
                "grid": {"selection": ["x"]},
                "steps": {"x": {"do": "select", "filter": "random", "drop": 1.5}},
            },
            r"drop must be .*, got 1.5 \(in \[steps.x\]\)",
        ),
        (
            {
                "grid": {"selection": ["x"]},
                "steps": {"x": {"do": "select", "filter": "random", "drp": 0.5}},
            },
            'did you mean "drop"',
        ),
        (
            {
                "base": {"selection": "x"},
                "steps": {
                    "f": {"do": "embed", "model": "resnt20", "weights": __file__},
                    "x": {"do": "select", "filter": "network", "features": "f"},
                },
            },
            r'\[steps.f\]: unknown model "resnt20"',
        ),
        (
            {
                "base": {"selection": "x"},
                "steps": {
                    "f": {"do": "embed", "model": "hf:no/such"},
                    "x": {"do": "select", "filter": "network", "features": "f"},
                },
            },
            r'\[steps.f\]: there is no folder and no cached model "no/such"',
        ),
        ({"metric": "validation_accuracy"}, "no trial holds out images, .*; set validation"),
        ({"metric": "time_to_target"}, "no trial has a target, .*; set target_accuracy"),
        ({"metric": "steps_to_target"}, "no trial has a target"),
        ({"executor": {"kind": "local", "wrkers": 2}}, 'did you mean "workers"'),
        ({"executor": {"kind": "local", "workers": -3}}, r"workers must be in \[1, 1024\]"),
        ({"executor": {"kind": "locl"}}, 'did you mean "local"'),
    ],
)
def test_nothing_is_written(
    changes: dict[str, Any], message: str, pack: str, tmp_path: Path
) -> None:
    study = Study.from_dict(content(pack, **changes), tmp_path / "out")
    with pytest.raises(ThresherError, match=message):
        study.run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("metric", "fix"), [("accuracy", '"validation_accuracy"'), ("loss", '"train_loss"')]
)
def test_a_metric_of_test_images_needs_some(tmp_path: Path, metric: str, fix: str) -> None:
    """Every trial was trained, and then there was nothing to compare."""
    images = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 1), dtype=np.uint8)
    labels, ids = np.arange(40) % 2, [str(n) for n in range(40)]
    write_pack(ArraySource(images, labels, ["train"] * 40, ids, ["a", "b"]), tmp_path / "pack")
    changes = content(str(tmp_path / "pack"), base={"batch_size": 16}, metric=metric)
    study = Study.from_dict(changes, tmp_path / "study")
    with pytest.raises(InvalidValueError, match=f"pack has no test images, .* metric = {fix}"):
        study.run("in-process")
    assert not (tmp_path / "study").exists()
    held = Study.from_dict({**changes, "metric": "validation_accuracy"}, tmp_path / "study")
    held.run("in-process")
    assert [trial.value is not None for trial in held.trials()] == [True]


def test_exit_code_2_before_the_first_trial(thresher: Run, pack: str, tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    grid = {"data": [pack, str(tmp_path / "missing")]}
    write_text(file, dumps({"seeds": 1, "base": {"epochs": 1}, "grid": grid}))
    done = thresher("study", "run", file, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert str(tmp_path / "missing") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_list_that_does_not_exist(pack: str, tmp_path: Path) -> None:
    step = {"do": "select", "filter": "list", "file": str(tmp_path / "wrong.txt")}
    study = Study.from_dict(
        content(pack, grid={"selection": ["full", "mine"]}, steps={"mine": step}), tmp_path / "out"
    )
    with pytest.raises(ThresherError, match=r"\[steps\.mine\]: file .*wrong\.txt not found"):
        study.run()
    assert not (tmp_path / "out").exists()


def test_a_selection_of_another_pack(pack: str, tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    Selection(
        ids=["a"],
        labels=np.array([0]),
        keep=np.array([True]),
        score=np.zeros(1, np.float32),
        reason=[""],
        fingerprint="0" * 64,
    ).save(file)
    study = Study.from_dict(content(pack, base={"selection": str(file)}), tmp_path / "out")
    with pytest.raises(ThresherError, match=r"seed=0.*other\.parquet"):
        study.run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "a\\b", "a\0b", "", "x" * 90])
def test_a_step_cannot_write_outside_the_study(name: str, pack: str) -> None:
    steps = {name: {"do": "select", "filter": "random"}}
    with pytest.raises(InvalidValueError, match="a step cannot be called"):
        reading.from_dict(content(pack, grid={"selection": [name]}, steps=steps))


@pytest.mark.parametrize("seeds", [100_000_000, 10_001, 0, [10**23], [-1], [1, "x"], [], [0.5]])
def test_seeds_are_bounded(seeds: Any, pack: str) -> None:
    with pytest.raises(InvalidValueError, match="seeds"):
        reading.from_dict({**content(pack), "seeds": seeds})


def test_the_number_of_trials_is_bounded(pack: str, tmp_path: Path) -> None:
    grid = {"lr": [n / 1000 for n in range(100)], "batch_size": list(range(1, 101))}
    study = Study.from_dict(content(pack, grid=grid, seeds=100), tmp_path)
    with pytest.raises(InvalidValueError, match="1,000,000 trials, more than 100,000"):
        study.plan()


def test_a_step_without_data(pack: str, tmp_path: Path) -> None:
    steps = {"x": {"do": "select", "filter": "random"}}
    grid = {"data": [pack], "selection": ["x"]}
    study = Study.from_dict({"seeds": 1, "base": {}, "grid": grid, "steps": steps}, tmp_path)
    with pytest.raises(InvalidValueError, match=r"data is required in \[steps.x\]"):
        study.plan()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "wide", True])
def test_a_bad_margin(value: Any, pack: str) -> None:
    with pytest.raises(InvalidValueError, match="margin must be"):
        reading.from_dict({**content(pack), "margin": value})


def test_a_kind_keeps_the_options_that_the_file_has_for_it(pack: str, tmp_path: Path) -> None:
    """As `--executor` does; a partition of SLURM would be lost."""
    values = content(pack, executor={"kind": "local", "workers": -3})
    with pytest.raises(InvalidValueError, match=r"workers must be in \[1, 1024\]"):
        Study.from_dict(values, tmp_path).run("local")
    assert Study.from_dict(values, tmp_path).run("in-process", steps_only=True).steps == []


@pytest.mark.slow
def test_values_that_meant_default_in_older_files_still_do(pack: str, tmp_path: Path) -> None:
    executor = {"kind": "local", "workers": 0, "threads": 0, "gpus": -1, "mps": False}
    old = {**content(pack), "tune_seeds": 0, "compare": "", "executor": executor}
    study = Study.from_dict(old, tmp_path)
    assert (study.definition.tune_seeds, study.definition.compare) == (None, None)
    assert study.run().complete
    again = Study.open(tmp_path)
    assert again.status().complete
    assert json.loads(json.dumps(again.status().to_dict()))["counts"]["finished"] == 1


@pytest.mark.slow
def test_a_study_stores_its_format_and_refuses_a_newer_one(pack: str, tmp_path: Path) -> None:
    study = Study.from_dict(content(pack), tmp_path)
    study.run("in-process")
    stored = tmp_path / "study.toml"
    assert stored.read_text().startswith("format = 1\n")
    # A copy is a study file too, and keeps one `format`; a folder of version 0.1 has none.
    assert Study.load(stored, tmp_path).definition == Study.open(tmp_path).definition
    assert Study.open(tmp_path).status().complete
    stored.write_text(stored.read_text().removeprefix("format = 1\n"))
    assert Study.open(tmp_path).status().complete
    stored.write_text(f'format = 2\ncolour = "red"\n{stored.read_text()}')
    message = r"study.toml was written by a newer version of Thresher \(format 2, .* up to 1\)"
    for act in (lambda: Study.open(tmp_path), lambda: study.run("in-process")):
        with pytest.raises(InvalidValueError, match=message):
            act()
    assert stored.read_text().startswith("format = 2\n")


def test_changed_data_is_noticed(pack: str, tmp_path: Path) -> None:
    data = tmp_path / "pack"
    shutil.copytree(pack, data)
    values = content(str(data), executor={"kind": "in-process"})
    assert Study.from_dict(values, tmp_path / "out").run().count("finished") == 1
    meta = json.loads((data / "pack.json").read_text())
    write_text(data / "pack.json", json.dumps(meta | {"fingerprint": "0" * 32}))
    more = Study.from_dict({**values, "seeds": 2}, tmp_path / "out")
    with pytest.raises(InvalidValueError, match=r"was changed after 1 run of the study had fin"):
        more.run()
    data.rename(tmp_path / "first")
    other = _other_splits(Pack.open(pack), data)
    assert other.fingerprint == meta["fingerprint"], "the same images, split differently"
    with pytest.raises(InvalidValueError, match=r"was changed after 1 run of the study had fin"):
        more.run()
    shutil.rmtree(data)
    (tmp_path / "first").rename(data)
    write_text(data / "pack.json", json.dumps(meta))
    assert more.run().count("finished") == 2


@pytest.mark.slow
@pytest.mark.parametrize("option", ["batch_schedule", "weights"])
def test_changed_files_of_options_are_noticed(pack: str, tmp_path: Path, option: str) -> None:
    file = tmp_path / f"{option}.csv"

    def write(number: int) -> None:
        if option == "batch_schedule":
            file.write_text(f"epoch,batch\n0,16\n1,{number}\n")
            return
        torch.manual_seed(number)
        torch.save(build("tiny", 10, 1).state_dict(), file)

    write(32)
    values = content(pack, executor={"kind": "in-process"})
    values["base"] |= {option: str(file), "batch_size": 16}
    first = Study.from_dict(values, tmp_path / "out")
    assert first.run().count("finished") == 1
    kept = file.read_bytes()
    write(48)
    more = Study.from_dict({**values, "seeds": 2}, tmp_path / "out")
    with pytest.raises(InvalidValueError, match=f"{option}.csv was changed after 1 run of the"):
        more.run()
    file.write_bytes(kept)
    assert more.run().count("finished") == 2


def test_a_wrong_batch_schedule_is_refused_before_the_first_trial(
    pack: str, tmp_path: Path
) -> None:
    values = content(pack)
    values["base"] |= {"batch_schedule": "dubble@1"}
    with pytest.raises(InvalidValueError, match=r'seed=0.*: batch_schedule cannot be "dubble@1"'):
        Study.from_dict(values, tmp_path / "out").run("in-process")
    assert not (tmp_path / "out").exists()


def _other_splits(pack: Pack, out: Path) -> Pack:
    """Write the pack again, with the split of each sample moved to the next one."""
    images, splits = pack.images(np.arange(len(pack))), pack.splits.to_pylist()
    moved = [*splits[1:], splits[0]]
    source = ArraySource(images, pack.labels, moved, pack.ids.to_pylist(), list(pack.classes))
    return write_pack(source, out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "command"])
def test_changed_decisions_on_a_used_selection_are_noticed(
    kind: str, pack: str, tmp_path: Path, thresher: Run
) -> None:
    opened = Pack.open(pack)
    train = opened.indices("train")
    keep = np.arange(len(train)) % 4 > 0
    chosen = Selection(
        ids=opened.ids.take(train).to_pylist(),
        labels=opened.labels[train],
        keep=keep,
        score=np.zeros(len(train), np.float32),
        reason=[""] * len(train),
        fingerprint=opened.fingerprint,
    )
    path = tmp_path / "S.parquet"
    chosen.save(path)
    values = content(pack, grid={"selection": ["full", str(path)]}, executor={"kind": "in-process"})
    if kind == "command":
        script = tmp_path / "mine.py"
        script.write_text(
            "import json, sys\n"
            "json.dump({'accuracy': 0.5}, open(sys.argv[1] + '/result.json', 'w'))\n"
        )
        values["base"] = {"command": f"{{python}} {script} {{out}} {{selection}} {{seed}}"}
    study = Study.from_dict(values, tmp_path / "out")
    assert study.run().count("finished") == 2
    assert study.run().count("finished") == 2, "nothing has changed"
    log = OverrideLog(SelectionPaths(path).overrides)
    log.decide(chosen.ids[:2], True, "looked at it", keep[:2].tolist())
    said = r"S.parquet or decisions on it were changed after 1 trial that used it had .* \(such as"
    with pytest.raises(InvalidValueError, match=said):
        study.run()
    if kind == "train":
        done = thresher("study", "run", tmp_path / "out" / "study.toml", "--out", tmp_path / "out")
        assert done.returncode == 2
        assert "were changed after 1 trial" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    # A decision that confirms what is there changes nothing; undoing the first one neither.
    log.undo(dict(zip(chosen.ids, keep.tolist(), strict=True)))
    log.decide(chosen.ids[:1], bool(keep[0]), "seen", keep[:1].tolist())
    assert study.run().count("finished") == 2
    # A new label counts, too; the trial can be run again.
    log.relabel(
        {chosen.ids[1]: int(chosen.labels[1])},
        (int(chosen.labels[1]) + 1) % 10,
        "",
        {chosen.ids[1]: True},
    )
    with pytest.raises(InvalidValueError, match=said):
        study.run()
    (used,) = (task.out for task in study.plan().trials.values() if "selection" in task.settings)
    shutil.rmtree(used)
    assert study.run().count("finished") == 2


def test_a_rule_without_a_base_batch_is_named(pack: str, tmp_path: Path) -> None:
    """By default the base is the batch of each run, so that the rule scales nothing."""

    def notes(**base: Any) -> list[str]:
        study = Study.from_dict(
            content(pack, base=base, grid={"batch_size": [16, 32]}), tmp_path / "study"
        )
        return [note for note in analyse(study).notes if "no effect" in note]

    assert notes(lr_rule="linear") == [
        "lr_rule linear has no effect without base_batch, the batch size that lr belongs to: by "
        "default it is that of the run."
    ]
    assert notes(lr_rule="linear", base_batch=16) == []
    assert notes(lr_rule="linear", batch_schedule="double@1") == []
    assert notes() == []


def test_a_schedule_whose_steps_are_all_after_the_end_is_mentioned(
    pack: str, tmp_path: Path
) -> None:
    base = {"schedule": "step", "epochs": 3}
    study = Study.from_dict(content(pack, base=base), tmp_path / "study")
    said = "the learning rate does not fall, because all step_epochs are after the run of 3 epochs."
    assert said in analyse(study).notes


def test_a_target_that_is_looked_at_only_at_the_end_is_mentioned(pack: str, tmp_path: Path) -> None:
    """As with fast-cifar, whose own settings evaluate once: all runs then take as many steps."""

    def notes(**base: Any) -> list[str]:
        study = Study.from_dict(content(pack, base=base), tmp_path / "study")
        return [note for note in analyse(study).notes if "looked at" in note]

    late = "target_accuracy is looked at only when a run ends, because evaluate_every is 0."
    more = {"target_accuracy": 0.9, "epochs": 3}
    assert notes(model="fast-cifar", **more) == [late]
    assert notes(model="fast-cifar", evaluate_every=1, **more) == []
    assert notes(**more) == []
    assert notes(evaluate_every=0, epochs=3) == []
