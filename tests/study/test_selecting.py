"""The embed and select steps of a study: their keys are those of the options they configure."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError
from thresher.study.preflight import check_inputs
from thresher.study.selecting import HOLD_OUT, check_embed, check_select, hold_out, select
from thresher.study.study import Study
from thresher.training.config import TrainConfig
from thresher.training.split import DataConfig, split_samples
from thresher.training.train import train


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_pack(tmp_path_factory.mktemp("packs"))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"run": "r", "batchsize": 3}, 'unknown option "batchsize"'),
        ({"run": "r", "batch_size": 0.5}, "batch_size must be an integer, got 0.5"),
        ({"run": "r", "dtype": "int8"}, 'dtype cannot be "int8"'),
        ({"model": "tiny"}, "there is no network to embed with"),
        ({"run": "r", "model": "tiny"}, "run excludes `model` and `weights`"),
    ],
)
def test_embed_steps_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        check_embed({"data": "digits", **settings}, "[steps.x]")


def test_embed_steps_of_version_0_1_still_load() -> None:
    """They wrote 0 and an empty text for defaults."""
    old = {"data": "d", "seed": 0, "run": "r", "model": "", "weights": "", "crop": 0}
    check_embed({**old, "image_size": 0}, "[steps.x]")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"filter": "netwrok"}, "says filter = 'netwrok'; did you mean \"network\""),
        ({"filter": "network", "min_sample": 3}, 'unknown option "min_sample".*min_samples'),
        ({"filter": "network", "drop": 2}, r"drop must be in \[0, 1\), got 2"),
        ({"filter": "network", "eps": "wide"}, 'eps must be a number or "auto"'),
        ({"filter": "recursive"}, "run is required by filter recursive"),
        ({"filter": "near-duplicates", "like": "x.parquet"}, "has no `drop`"),
    ],
)
def test_select_steps_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        check_select({"data": "digits", **settings}, "[steps.x]")


def test_every_key_of_a_select_step_loads() -> None:
    check_select(
        {
            "data": "digits",
            "filter": "network",
            "features": "f.npy",
            "also": ["g.npy"],
            "eps": "auto",
            "votes": 3,
            "perplexities": [10, 30.5],
            "start": "random",
            "seed": 2,
        },
        "[steps.x]",
    )
    # A step done for each seed is given one, whether or not the filter has a use for it.
    check_select({"data": "digits", "filter": "near-duplicates", "seed": 1}, "[steps.x]")


def test_a_run_on_a_selection_is_not_retrained_on_what_it_left_out(
    few: str, tmp_path: Path
) -> None:
    selection, run = tmp_path / "s.parquet", tmp_path / "run"
    select({"data": few, "filter": "random", "drop": 0.5}, selection)
    options: dict[str, Any] = {"data": few, "model": "tiny", "epochs": 1, "batch_size": 64}
    train(TrainConfig(**options, device="cpu", selection=str(selection), out=str(run)))
    step = {"data": few, "filter": "recursive", "run": str(run), "reduce": "pca", "drop": 0.1}
    sentence = f"run must be trained on all samples, .* on the selection {selection}"
    with pytest.raises(InvalidValueError, match=sentence):
        select(step, tmp_path / "again.parquet")
    assert not (tmp_path / "again.rounds").exists()


def test_like_drops_the_same_share(digits: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a" / "selection.parquet", tmp_path / "b" / "selection.parquet"
    select({"data": str(digits), "filter": "random", "drop": 0.123, "seed": 1}, first)
    # What an interrupted attempt leaves behind.
    second.parent.mkdir()
    second.with_suffix(".json").write_text("{}")
    select({"data": str(digits), "filter": "random", "like": str(first), "seed": 2}, second)
    assert Selection.load(first).dropped == Selection.load(second).dropped == 177
    assert Selection.load(second).meta["like"] == str(first)
    union = tmp_path / "c" / "selection.parquet"
    settings = {"data": str(digits), "filter": "union", "selections": [str(first), str(second)]}
    select(settings, union)
    assert Selection.load(union).meta["selections"] == ["random", "random"]


def _class_counts(selection: Selection) -> dict[int, int]:
    labels, counts = np.unique(selection.labels[~selection.keep], return_counts=True)
    return dict(zip(labels.tolist(), counts.tolist(), strict=True))


def test_the_control_drops_as_many_of_each_class_and_differs_by_seed(
    digits: Path, tmp_path: Path
) -> None:
    pack = Pack.open(digits)
    train = pack.indices("train")
    labels = pack.labels[train]
    keep = ~((labels == 3) & (np.arange(len(labels)) % 4 == 0) | (labels == 7))
    model = Selection(
        ids=pack.ids.take(pa.array(train)).to_pylist(),
        labels=labels,
        keep=keep,
        score=np.zeros(len(keep), np.float32),
        reason=[""] * len(keep),
        fingerprint=pack.fingerprint,
    ).save(tmp_path / "model.parquet")
    draws = []
    for seed in (0, 1):
        out = tmp_path / f"{seed}" / "selection.parquet"
        select(
            {"data": str(digits), "filter": "random", "like": str(model.path), "seed": seed}, out
        )
        draws.append(Selection.load(out))
        assert _class_counts(draws[-1]) == _class_counts(model)
    assert not np.array_equal(draws[0].keep, draws[1].keep)


@pytest.mark.slow  # runs a study with three filters
def test_filters_choose_only_among_the_samples_that_trials_train_on(
    few: str, tmp_path: Path
) -> None:
    """Neither the extractor nor a filter sees the validation split; the arms have equal sizes."""
    content: dict[str, Any] = {
        "seeds": 2,
        "base": {
            **{"data": few, "model": "tiny", "epochs": 1, "batch_size": 32, "device": "cpu"},
            **{"validation": 0.25, "split_seed": 3, "evaluate_every": 0},
        },
        "grid": {"selection": ["random", "network", "recursive"]},
        "steps": {
            "extractor": {"do": "train", "record_dynamics": True},
            "network": {"do": "select", "filter": "network", "run": "extractor"}
            | {"reduce": "pca", "drop": 0.1},
            "random": {"do": "select", "filter": "random", "like": "network"},
            "recursive": {"do": "select", "filter": "recursive", "run": "extractor"}
            | {"reduce": "pca", "drop": 0.1},
        },
        "executor": {"kind": "in-process"},
    }
    study = Study.from_dict(content, tmp_path / "study")
    assert not study.run().failed
    pack = Pack.open(few)
    train = pack.indices("train")
    config = TrainConfig.from_dict(
        {"data": few, "out": "-", **{key: content["base"][key] for key in HOLD_OUT}}
    )
    held = set(pack.ids.take(pa.array(split_samples(config, pack).validation)).to_pylist())
    assert len(held) == round(0.25 * len(train))
    seen = pq.read_table(study.output("extractor") / "dynamics.parquet").column("id").to_pylist()
    assert held.isdisjoint(seen)
    for step in ("network", "recursive"):
        assert held.isdisjoint(Selection.load(study.output(step)).ids)
    assert held.isdisjoint(Selection.load(study.output("random", seed=0)).ids)
    sizes = {(t.cell["selection"], t.train_samples or 0) for t in study.trials()}
    assert len(sizes) == 3  # the same for both seeds
    kept = dict(sizes)
    assert kept["random"] == kept["network"] < len(train) - len(held)


def test_a_step_that_sees_held_out_samples_is_refused(few: str, tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "seeds": 1,
        "base": {"data": few, "epochs": 1, "batch_size": 32, "validation": 0.25},
        "grid": {"selection": ["network"]},
        "steps": {
            "extractor": {"do": "train", "validation": 0.0},
            "network": {"do": "select", "filter": "network", "run": "extractor", "drop": 0.1},
        },
    }
    sentence = r"\[steps.extractor\] and trial .* hold out different samples \(no validation and "
    with pytest.raises(InvalidValueError, match=sentence):
        Study.from_dict(content, tmp_path).run()
    content["steps"]["extractor"]["data"] = f"{few}/../{Path(few).name}"  # the same pack
    with pytest.raises(InvalidValueError, match=sentence):
        Study.from_dict(content, tmp_path).run()
    del content["steps"]["extractor"]["data"]
    # If the split is an axis, the steps must follow it.
    del content["steps"]["extractor"]["validation"], content["base"]["validation"]
    content["grid"]["validation"] = [0.1, 0.2]
    with pytest.raises(InvalidValueError, match=r"\[steps.network\] and trial .* hold out"):
        Study.from_dict(content, tmp_path).run()
    for step in content["steps"].values():
        step["each"] = ["validation"]
    check_inputs(Study.from_dict(content, tmp_path).plan())
    # A share and a count may mean the same samples, and 0 what a pack with a test split has.
    content["grid"]["validation"] = [0.25]
    content["steps"]["extractor"] = {"do": "train", "validation": 60}
    check_inputs(Study.from_dict(content, tmp_path).plan())
    del content["grid"]["validation"]
    content["steps"] = {"network": {"do": "select", "filter": "random", "validation": 0}}
    check_inputs(Study.from_dict(content, tmp_path).plan())


def test_the_seed_of_the_split_counts_without_a_size() -> None:
    """A pack without a test split holds out a tenth by default."""
    assert hold_out({"split_seed": 5}) == DataConfig(data="d", split_seed=5).hold_out
    assert hold_out({"validation": 0.0}) == DataConfig(data="d", validation=0.0).hold_out
    content = {
        "base": {"data": "d", "split_seed": 5},
        "grid": {"selection": ["random"]},
        "steps": {"random": {"do": "select", "filter": "random"}},
    }
    plan = Study.from_dict(content, "study").plan()
    assert [step.settings["split_seed"] for step in plan.steps.values()] == [5]
