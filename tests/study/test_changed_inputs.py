"""Files outside a study that were changed after steps and trials had used them are noticed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from few_digits import make_pack

from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError
from thresher.models.features import FeaturePaths
from thresher.paths import RunPaths, SelectionPaths, StudyPaths, write_json
from thresher.study.inputs import InputRecord
from thresher.study.study import Study
from thresher.study.tasks import StudyPlan, StudyTask, TaskKind

SCRIPT = """
import json, sys
json.dump({"accuracy": 0.5}, open(sys.argv[1] + "/result.json", "w"))
"""


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_pack(tmp_path_factory.mktemp("packs"))


def _selection(pack: str, path: Path, score: float = 0.0) -> Path:
    opened = Pack.open(pack)
    train = opened.indices("train")
    n = len(train)
    Selection(
        ids=opened.ids.take(train).to_pylist(),
        labels=opened.labels[train],
        keep=np.arange(n) % 4 > 0,
        score=score + np.arange(n, dtype=np.float32),
        reason=[""] * n,
        fingerprint=opened.fingerprint,
    ).save(path)
    return path


def _features(pack: str, path: Path, seed: int) -> Path:
    opened = Pack.open(pack)
    train = opened.indices("train")
    np.save(path, np.random.default_rng(seed).normal(size=(len(train), 8)).astype(np.float32))
    path.with_suffix(".ids.txt").write_text("\n".join(opened.ids.take(train).to_pylist()))
    return path


def _study(tmp_path: Path, data: str, seeds: int, **step: Any) -> Study:
    """A study of a command that trains on a selection of each seed."""
    (tmp_path / "own.py").write_text(SCRIPT)
    command = f"{{python}} -S {tmp_path}/own.py {{out}} {{seed}} {{selection}}"
    content: dict[str, Any] = {"seeds": seeds, "base": {"command": command, "data": data}}
    if step:
        content["base"]["selection"] = "chosen"
        content["steps"] = {"chosen": {"do": "select", "each": ["seed"], **step}}
    else:
        content["base"]["selection"] = "full"
    return Study.from_dict(content, tmp_path / "out")


def test_changed_features_of_a_step_are_noticed(pack: str, tmp_path: Path) -> None:
    file = _features(pack, tmp_path / "F.npy", 0)
    step = {"filter": "moderate", "drop": 0.2, "features": str(file)}
    first = _study(tmp_path, pack, 1, **step)
    assert first.run("in-process").count("finished") == 1
    _features(pack, file, 1)
    more = _study(tmp_path, pack, 2, **step)
    said = r"F.npy was changed after 1 step that used it had finished \(such as chosen,seed=0"
    with pytest.raises(InvalidValueError, match=said):
        more.run("in-process")
    assert more.status().count("finished") == 1
    _features(pack, file, 0)  # the same content, written again
    assert more.run("in-process").count("finished") == 2
    _features(pack, file, 1)
    with pytest.raises(InvalidValueError, match="after 2 steps that used it had finished"):
        more.run("in-process")
    # The folder of an earlier version does not know what was used.
    StudyPaths(tmp_path / "out").inputs.unlink()
    assert more.run("in-process").complete


def test_a_step_that_failed_may_have_other_inputs_later(pack: str, tmp_path: Path) -> None:
    file = _features(pack, tmp_path / "F.npy", 0)
    ids = file.with_suffix(".ids.txt")
    ids.write_text(ids.read_text().rpartition("\n")[0])
    study = _study(tmp_path, pack, 1, filter="moderate", drop=0.2, features=str(file))
    assert study.run("in-process").steps[0].state == "failed"
    _features(pack, file, 1)
    assert study.run("in-process", retry=True).complete
    assert study.run("in-process").complete


@pytest.mark.parametrize("given", ["like", "selections"])
def test_changed_selections_of_a_step_are_noticed(pack: str, tmp_path: Path, given: str) -> None:
    path = _selection(pack, tmp_path / "S.parquet")
    step: dict[str, Any] = {"filter": "random", "like": str(path)}
    if given == "selections":
        step = {"filter": "ccs", "drop": 0.5, "selections": [str(path)]}
    study = _study(tmp_path, pack, 1, **step)
    assert study.run("in-process").complete
    ids = Selection.load(path).ids
    log = OverrideLog(SelectionPaths(path).overrides)
    log.decide([ids[1]], True, "", [True])  # as the filter says
    assert study.run("in-process").complete
    log.decide([ids[1]], False, "", [True])
    with pytest.raises(InvalidValueError, match=r"S.parquet was changed after 1 step that used"):
        study.run("in-process")
    for file in tmp_path.glob("S.*"):
        file.unlink()
    _selection(pack, path)
    assert study.run("in-process").complete
    for file in tmp_path.glob("S.*"):
        file.unlink()
    _selection(pack, path, score=1.0)  # which only ccs looks at
    if given == "like":
        assert study.run("in-process").complete
    else:
        with pytest.raises(InvalidValueError, match=r"S.parquet was changed after 1 step"):
            study.run("in-process")


@pytest.mark.parametrize("version", ["this", "earlier"])
def test_changed_decisions_are_noticed_in_a_folder_that_was_moved(
    version: str, pack: str, tmp_path: Path
) -> None:
    """The same holds for one that is given as an absolute path instead of a relative one."""
    steps = {
        "first": {"do": "select", "filter": "random", "drop": 0.1},
        "second": {"do": "select", "filter": "random", "like": "first", "seed": 1},
    }
    grid = {"selection": ["full", "second"]}
    content: dict[str, Any] = {"seeds": 2, "base": {"data": pack}, "grid": grid, "steps": steps}
    before, after = (Study.from_dict(content, tmp_path / name) for name in ("before", "after"))
    before.run("in-process", steps_only=True)
    inputs = StudyPaths(before.root).inputs
    if version == "earlier":  # which wrote whole paths
        inputs.write_text(inputs.read_text().replace('"like steps/', f'"like {before.root}/steps/'))
    shutil.move(before.root, after.root)
    after.run("in-process", steps_only=True)
    path = after.output("first")
    kept = Selection.load(path).ids[:20]
    OverrideLog(SelectionPaths(path).overrides).decide(kept, False, "", [True] * len(kept))
    with pytest.raises(InvalidValueError, match=r"was changed after 1 step .*second,id="):
        after.run("in-process", steps_only=True)


def test_changed_data_of_a_command_is_noticed(pack: str, tmp_path: Path) -> None:
    data = tmp_path / "pack"
    shutil.copytree(pack, data)
    assert _study(tmp_path, str(data), 1).run("in-process").complete
    shutil.rmtree(data)
    (tmp_path / "other").mkdir()
    make_pack(tmp_path / "other", rows=200)
    (tmp_path / "other" / "few-digits").rename(data)
    more = _study(tmp_path, str(data), 2)
    with pytest.raises(InvalidValueError, match=r"pack was changed after 1 trial that used it"):
        more.run("in-process")
    shutil.rmtree(data)
    shutil.copytree(pack, data)
    assert more.run("in-process").complete


@pytest.mark.slow  # trains
def test_a_changed_selection_of_a_run_that_a_step_trains_is_noticed(
    pack: str, tmp_path: Path
) -> None:
    path = _selection(pack, tmp_path / "S.parquet")
    content = {
        "seeds": 1,
        "base": {"data": pack, "epochs": 1, "batch_size": 48, "device": "cpu"},
        "grid": {"selection": ["chosen"]},
        "steps": {
            "network": {"do": "train", "selection": str(path)},
            "chosen": {"do": "select", "filter": "moderate", "run": "network", "drop": 0.2},
        },
    }
    study = Study.from_dict(content, tmp_path / "out")
    assert study.run("in-process").complete
    assert study.run("in-process").complete
    for file in tmp_path.glob("S.*"):
        file.unlink()
    opened = Selection.load(_selection(pack, tmp_path / "T.parquet"))
    opened.keep[:20] = True
    opened.save(path)
    with pytest.raises(InvalidValueError, match=r"S.parquet or .* after 1 run that used it had"):
        study.run("in-process")


def _run(path: Path, seconds: float) -> None:
    path.mkdir(exist_ok=True)
    write_json(RunPaths(path).config, {"format": 1})
    write_json(RunPaths(path).result, {"seconds": seconds})


def _features_folder(path: Path, value: float) -> None:
    path.mkdir(exist_ok=True)
    paths = FeaturePaths(path)
    write_json(paths.meta, {"format": 1})
    np.save(paths.array, np.full((3, 2), value, np.float32))
    paths.index.write_text("ids")


def _file(path: Path, value: float) -> None:
    path.write_text(str(value))


def _model_folder(path: Path, value: float) -> None:
    path.mkdir(exist_ok=True)
    (path / "model.safetensors").write_text(str(value))


@pytest.mark.parametrize(
    ("kind", "settings", "write"),
    [
        ("select", {"run": "PATH"}, _run),
        ("select", {"dynamics": "PATH"}, _run),
        ("select", {"also": ["PATH"]}, _run),
        ("select", {"features": "PATH"}, _features_folder),
        ("embed", {"weights": "PATH"}, _file),
        ("embed", {"run": "PATH"}, _run),
        ("embed", {"model": "hf:PATH"}, _model_folder),
        ("embed", {"model": "input_of_step:Net"}, _file),
        ("select", {"filter": "input_of_step:Filter"}, _file),
        ("command", {"arguments": ["python", "PATH", "--out", "o"]}, _file),
        ("train", {"branch_from": "PATH"}, _run),
        ("train", {"dynamic": "random:like=PATH"}, _run),
    ],
)
def test_every_input_is_looked_at(
    tmp_path: Path,
    kind: TaskKind,
    settings: dict[str, Any],
    write: Callable[[Path, float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "input_of_step.py"
    text = json.dumps(settings).replace("PATH", str(path))
    out = tmp_path / "steps" / "name"
    out = out / "selection.parquet" if kind == "select" else out
    task = StudyTask("name", kind, json.loads(text), out, "id", step="name")
    plan = StudyPlan({"name": task}, {})
    write(path, 1.0)
    InputRecord(tmp_path, plan).add([task])
    write(path, 2.0)
    InputRecord(tmp_path, plan).check([task])  # not finished
    task.mark.parent.mkdir(parents=True)
    task.mark.touch()
    with pytest.raises(InvalidValueError, match=r"input_of_step.py was changed after 1 step"):
        InputRecord(tmp_path, plan).check([task])
    write(path, 1.0)
    InputRecord(tmp_path, plan).check([task])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    InputRecord(tmp_path, plan).check([task])  # what is gone was not changed
