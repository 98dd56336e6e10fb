"""Every recipe that is a study, end to end, on a few digits: the same code path as its presets."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import DBSCAN

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import NotFoundError
from thresher.paths import RunPaths, write_json
from thresher.recipes import (
    jitsev_throughput,
    jitsev_validation,
    mccord_batch,
    mccord_linear,
    mccord_warmup,
    noisy_labels,
    ornl_fig5,
    ornl_fig6,
    ornl_fig7,
    ornl_fig7_again,
    ornl_fig7_published,
    ornl_future,
    ornl_mechanism,
    ornl_pretrained,
    ornl_table1,
)
from thresher.recipes.base import Recipe, RecipeResult
from thresher.recipes.support import mccord, studies
from thresher.study.analysis import analyse
from thresher.study.study import Study
from thresher.training import sharpness

sys.path.append(str(Path(__file__).parent.parent / "study"))
from few_digits import make_pack

from quick_tiny import _quick_tiny  # noqa: F401

BATCHES = [32, 96]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_pack(tmp_path_factory.mktemp("packs"))


@pytest.fixture(autouse=True)
def _one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(studies.EXECUTORS, "smoke", {"kind": "in-process"})


def _small(study: dict[str, Any], few: str) -> dict[str, Any]:
    """The same study on less: two seeds, one epoch, two values an axis, batches that fit."""
    base = {**study["base"], "data": few, "epochs": 1, "warmup_epochs": 0}
    grid = {key: values[:2] for key, values in study["grid"].items()}
    small = {**study, "base": base, "seeds": 2, "grid": {**grid, "batch_size": BATCHES}}
    if "steps" in study:
        extractor = {**base, "batch_size": 32, "evaluate_every": 0, "sharpness": False}
        small["steps"] = _short_maps(studies.pipeline(extractor, 0.1))
    return small


def _short_maps(steps: dict[str, Any]) -> dict[str, Any]:
    """The same steps with maps of 100 iterations instead of 750."""
    return {
        name: {**step, "iterations": 100} if step.get("drop") else step
        for name, step in steps.items()
    }


def _check(result: RecipeResult, claim: str, lines: int) -> None:
    assert len(result.rows) == lines
    for line in result.rows:
        assert line.claim == claim
        assert line.measured


@pytest.mark.slow  # a study of three arms
def test_figure_7(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = _small(ornl_fig7.STUDIES["smoke"], few)
    monkeypatch.setitem(ornl_fig7.STUDIES, "smoke", small)
    result = ornl_fig7.RECIPE.run("smoke", tmp_path)
    _check(result, "O4", 2 * len(BATCHES) + 2)
    assert result.data["lr"] == small["base"]["lr"]
    assert Path(result.data["report"]).exists()
    study = Study.open(tmp_path / "study")
    for batch in BATCHES:  # equal work
        trials = [t for t in study.trials() if t.cell["batch_size"] == batch]
        assert len({t.steps for t in trials}) == 1
        filtered = [t for t in trials if "full" not in t.cell["arm"]]
        assert len({t.train_samples for t in filtered}) <= 2  # two seeds
    networks = [Selection.load(study.output("network", seed=s)) for s in (0, 1)]
    controls = [Selection.load(study.output("random", seed=s)) for s in (0, 1)]
    for network, control in zip(networks, controls, strict=True):
        np.testing.assert_array_equal(
            np.bincount(network.labels[network.keep]), np.bincount(control.labels[control.keep])
        )
    assert not np.array_equal(networks[0].keep, networks[1].keep)  # each seed has its own map


@pytest.mark.slow
def test_figure_7_tunes_for_each_batch_and_arm_and_reads_the_budget_both_ways(
    few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With results that are there already: nothing is trained."""
    small = _small(ornl_fig7.STUDIES["smoke"], few)
    base = {key: value for key, value in small["base"].items() if key != "lr"}
    grid: dict[str, list[Any]] = {"batch_size": BATCHES, "lr": [0.05, 0.1]}
    small = {**small, "base": {**base, "validation": 0.25}, "grid": grid, **ornl_fig7.TUNED}
    monkeypatch.setitem(ornl_fig7.STUDIES, "smoke", {**small, "arms": ornl_fig7.BOTH_READINGS})
    study = Study.from_dict(ornl_fig7.definition("smoke"), tmp_path / "study")
    random = np.random.default_rng(0)
    for trial in study.plan().trials.values():
        accuracy = float(random.normal(0.9, 0.01))
        numbers = {"accuracy": accuracy, "validation_accuracy": accuracy, "steps": 40}
        write_json(RunPaths(trial.out).result, {"status": "finished", "seconds": 4.0, **numbers})
    result = ornl_fig7.RECIPE.run("smoke", tmp_path)
    _check(result, "O4", 10)
    tuned = {f"{batch}, {arm}" for batch in BATCHES for arm in ornl_fig7.BOTH_READINGS}
    assert set(result.data["lr"]) == tuned
    assert set(result.data["lr"].values()) <= set(grid["lr"])
    readings = ["equal epochs" in row.paper for row in result.rows]
    assert readings == [*4 * [False], *4 * [True], *2 * [False]]


def test_figure_7_has_rows_for_each_weight_decay(
    few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study of the gpu preset, with results that are there already."""
    small = {**ornl_fig7.STUDIES["gpu"], "seeds": 4}
    small["base"] = {**small["base"], "data": few, "validation": 0.25, "epochs": 1}
    small["grid"] = {**small["grid"], "batch_size": [32, 96], "lr": [0.1]}
    small["exclude"] = [{**small["exclude"][0], "batch_size": 32}]
    monkeypatch.setitem(ornl_fig7.STUDIES, "smoke", small)
    monkeypatch.setattr(ornl_fig7, "LARGE", 96)
    content = ornl_fig7.definition("smoke")
    assert content["primary"] == [
        f"network{reading} - {other}{of} @ weight_decay={decay}, batch_size=96"
        for reading in ("", ", equal epochs")
        for other, of in (("full", ""), ("random", reading))
        for decay in (0.005, 0.01)
    ]
    assert list(content["claimed"]) == content["primary"][:2]
    study = Study.from_dict(content, tmp_path / "study")
    random = np.random.default_rng(0)
    for step in study.plan().steps.values():
        if step.step == "extractor":
            assert step.at["seed"] in range(4)
    for trial in study.plan().trials.values():
        accuracy = float(random.normal(0.9, 0.01))
        numbers = {"accuracy": accuracy, "validation_accuracy": accuracy, "seconds": 4.0}
        write_json(RunPaths(trial.out).result, {"status": "finished", "steps": 40, **numbers})
    lines = ornl_fig7.rows(analyse(study))
    assert len(lines) == 4 * 2 + 2 * 2 + 1  # equal epochs at the large batch only
    assert sum("weight decay 0.01" in line.paper for line in lines) == 6


@pytest.mark.slow  # a study of three arms
def test_the_mechanism(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = _small(ornl_mechanism.STUDIES["smoke"], few)
    small["grid"] = {"batch_size": BATCHES[:1]}
    monkeypatch.setitem(ornl_mechanism.STUDIES, "smoke", small)
    # The sharpness, too, is measured on less.
    monkeypatch.setattr(sharpness, "SAMPLES", 32)
    monkeypatch.setattr(sharpness, "ITERATIONS", 4)
    result = ornl_mechanism.RECIPE.run("smoke", tmp_path)
    _check(result, "O4", 3)
    assert ["steps" in row.paper for row in result.rows] == [True, False, False]
    assert "Hessian" in result.rows[2].paper
    reached = json.loads((tmp_path / ornl_mechanism.REACHED).read_text())
    assert reached["accuracy"] == ornl_mechanism.TARGETS["smoke"]
    runs = {(run["arm"], run["seed"]) for run in reached["steps_to_target"]}
    assert runs == {(arm, seed) for arm in ornl_mechanism.ARMS for seed in (0, 1)}


@pytest.mark.slow  # a study of five arms
def test_noisy_labels(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = _small(noisy_labels.STUDIES["smoke"], few)
    small["grid"] = {"batch_size": BATCHES[:1]}
    monkeypatch.setitem(noisy_labels.STUDIES, "smoke", small)
    monkeypatch.setitem(noisy_labels.SHARES, "smoke", (0.2,))
    result = noisy_labels.RECIPE.run("smoke", tmp_path)
    _check(result, "O4", 4)
    assert [row.values["wrong_labels"] for row in result.rows] == 4 * [0.2]
    study = Study.open(tmp_path / "wrong-20" / "study")
    assert len({t.steps for t in study.trials()}) == 1
    pack = Pack.open(tmp_path / "wrong-20" / "data")
    oracle = Selection.load(pack.root / "flipped.parquet")
    for trial in study.trials():
        if trial.cell["arm"] == "oracle":
            assert trial.train_samples == oracle.kept
    found = json.loads((tmp_path / "found.json").read_text())["0.2"]
    network = Selection.load(next(study.root.glob("steps/network,seed=0*/selection.parquet")))
    both = (~network.keep & ~oracle.keep).sum()
    assert network.ids == oracle.ids
    assert found["network"][0] == pytest.approx(both / oracle.dropped)
    assert all(len(shares) == len(found["random"]) > 1 for shares in found.values())


@pytest.mark.slow  # a study of three arms
def test_figure_6(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ornl_fig6.STUDIES, "smoke", _small(ornl_fig6.STUDIES["smoke"], few))
    result = ornl_fig6.RECIPE.run("smoke", tmp_path)
    _check(result, "O3", 2 * len(BATCHES))
    assert "wd" in result.rows[0].measured


@pytest.mark.slow  # a study of six arms, and retrained extractors
def test_future_work(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {**studies.SMOKE, "data": few, "epochs": 1, "warmup_epochs": 0}
    monkeypatch.setitem(studies.BASES, "smoke", base)
    small = ornl_future._study("smoke", "tiny", [96], 2)
    small["steps"] = _short_maps(small["steps"])
    monkeypatch.setitem(ornl_future.STUDIES, "smoke", small)
    result = ornl_future.RECIPE.run("smoke", tmp_path)
    _check(result, "O8", 5)
    claims = {tuple(row.paper.split(", ")[1].split(": ")) for row in result.rows}
    # Worse than another filter does not mean that noisy data stay.
    assert ("grid against network", "grid above network") in claims
    assert ("grid against random-grid", "stratified grid sampling removes noisy data") in claims
    study = Study.open(tmp_path)
    for name in ("network", "grid", "recursive"):
        filtered = Selection.load(study.output(name, seed=1))
        control = Selection.load(study.output(ornl_future._control(name), seed=1))
        dropped = np.bincount(filtered.labels[~filtered.keep], minlength=10)
        assert dropped.sum() > 0
        np.testing.assert_array_equal(
            dropped, np.bincount(control.labels[~control.keep], minlength=10)
        )


@pytest.mark.slow  # pretraining, and a study of three arms
def test_a_pretrained_extractor(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        ornl_pretrained.STUDIES, "smoke", _small(ornl_pretrained.STUDIES["smoke"], few)
    )
    result = ornl_pretrained.RECIPE.run("smoke", tmp_path)
    _check(result, "O7", 3 * len(BATCHES))
    ours = [row for row in result.rows if row.paper.startswith("our question: ")]
    assert ["trained one" in row.paper for row in ours] == len(BATCHES) * [True]
    study = Study.open(tmp_path / "study")
    trained, pretrained = (
        Selection.load(study.output(name, seed=0)) for name in ("network", "pretrained")
    )
    assert abs(trained.dropped - pretrained.dropped) < 5 < trained.dropped  # the nearest eps
    assert not np.array_equal(trained.keep, pretrained.keep)
    with pytest.raises(NotFoundError, match="resnet101-imagenet"):
        ornl_pretrained.RECIPE.run("paper", tmp_path / "paper")


@pytest.mark.slow  # starts two workers
def test_throughput(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {**jitsev_throughput.BASES["smoke"], "data": few, "model": "tiny", "epochs": 1}
    monkeypatch.setitem(jitsev_throughput.BASES, "smoke", {**base, "warmup_epochs": 0})
    monkeypatch.setattr(jitsev_throughput, "SEEDS", 2)
    result = jitsev_throughput.RECIPE.run("smoke", tmp_path)
    _check(result, "J2", 1)
    assert "images/s" in result.rows[0].measured
    runs = {(run["workers"], run["seed"]): run["images_per_s"] for run in result.data["runs"]}
    assert set(runs) == {(1, 0), (1, 1), (2, 0), (2, 1)}
    means = [np.exp(np.mean(np.log([runs[k, seed] / k for seed in (0, 1)]))) for k in (1, 2)]
    assert f"{2 * means[1]:,.0f} images/s, {means[1] / means[0]:.2f} of" in result.rows[0].measured


@pytest.mark.slow  # a study with 18 trainings
def test_figure_5(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ornl_fig5.STUDIES, "smoke", _small(ornl_fig5.STUDIES["smoke"], few))
    result = ornl_fig5.RECIPE.run("smoke", tmp_path)
    _check(result, "O2", 7)
    (preferred,) = (row for row in result.rows if "each network" in row.paper)
    assert set(preferred.values["preferred_batch"].values()) <= set(BATCHES)  # type: ignore[attr-defined]


@pytest.mark.slow  # two maps of every network and seed
def test_table_1(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, base, _ = ornl_table1.EXTRACTORS["smoke"]
    small = (models, {**base, "data": few, "epochs": 1, "warmup_epochs": 0}, 2)
    monkeypatch.setitem(ornl_table1.EXTRACTORS, "smoke", small)
    for name, kind in ornl_table1.MAPS.items():
        short = replace(kind, options={**kind.options, "iterations": 100})
        monkeypatch.setitem(ornl_table1.MAPS, name, short)
    result = ornl_table1.RECIPE.run("smoke", tmp_path)
    _check(result, "O1", 2 * (len(models) + 1))
    study = Study.open(tmp_path / "study")
    assert study.status().count("waiting") == len(study.plan().trials)  # only steps are run
    shares = []
    for name, kind in ornl_table1.MAPS.items():
        eps, maps = result.data[name]["eps"], result.data[name]["maps"]
        for model in models:
            for seed, noise in enumerate(maps[model]):
                selection = Selection.load(study.output(name, model=model, seed=seed))
                assert noise["share"] == _noise_share(selection, eps)
                assert noise["at_default"] == _noise_share(selection, 0.5)
                assert noise["at_knee"] == selection.dropped / len(selection.ids)
                own = _noise_share(selection, noise["eps_of_paper"])
                assert abs(own - ornl_table1.MEAN_SHARE) < 2 / len(selection.ids)
                shares += [noise["share"]] if kind.eps is None else []
        assert kind.eps in (None, eps)
    count = len(shares) * len(selection.ids)
    assert ornl_table1.MEAN_SHARE - 2 / count < np.mean(shares) <= ornl_table1.MEAN_SHARE
    made = {p: p.stat().st_mtime_ns for p in study.root.glob("steps/*/*") if p.is_file()}
    again = ornl_table1.RECIPE.run("smoke", tmp_path)
    assert again == result
    assert made == {p: p.stat().st_mtime_ns for p in study.root.glob("steps/*/*") if p.is_file()}


def _noise_share(selection: Selection, eps: float) -> float:
    """Return the share of a map that scikit-learn's DBSCAN of each class labels as noise."""
    assert selection.x is not None
    assert selection.y is not None
    points = np.stack([selection.x, selection.y], 1).astype(float)
    classes = [points[selection.labels == label] for label in np.unique(selection.labels)]
    noise = [(DBSCAN(eps=eps, min_samples=5).fit_predict(x) == -1).sum() for x in classes]
    return float(sum(noise) / len(points))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [mccord_batch.RECIPE, mccord_linear.RECIPE])
def test_mccord(recipe: Recipe, few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink_mccord(few, monkeypatch)
    _check(recipe.run("smoke", tmp_path), recipe.claim, 1)


@pytest.mark.slow  # a study of every warm-up
def test_mccord_warm_up(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink_mccord(few, monkeypatch)
    monkeypatch.setitem(mccord.BATCHES, "smoke", [16, *BATCHES])
    _check(mccord_warmup.RECIPE.run("smoke", tmp_path), "M2", 3)


def _shrink_mccord(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {**mccord.BASES["smoke"], "data": few, "epochs": 2, "step_epochs": [1.0]}
    monkeypatch.setitem(mccord.BASES, "smoke", base)
    monkeypatch.setitem(mccord.BATCHES, "smoke", BATCHES)
    monkeypatch.setitem(mccord_warmup.WARMUPS, "smoke", [0, 1])
    monkeypatch.setitem(mccord.SEEDS, "smoke", 2)


@pytest.mark.slow  # a study of every batch size
def test_validation_chooses(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {**_small(jitsev_validation.STUDIES["smoke"], few), "seeds": 3}
    monkeypatch.setitem(jitsev_validation.STUDIES, "smoke", small)
    result = jitsev_validation.RECIPE.run("smoke", tmp_path)
    _check(result, "J3", len(BATCHES) - 1)
    assert set(result.data["chosen"]) == set(BATCHES)
    rates = result.data["chosen"]
    retuned = [batch for batch in BATCHES if rates[batch] != rates[BATCHES[0]]]
    second = tmp_path / "inherited" / "study.toml"
    assert second.exists() == bool(retuned)  # trained only where the rates differ


@pytest.mark.slow  # expands thousands of trials
def test_presets_of_every_size_expand(tmp_path: Path) -> None:
    """The gpu and paper presets cannot be run here, but their studies must be well-formed."""
    figures = (ornl_fig5, ornl_fig6, ornl_fig7, ornl_fig7_again, ornl_fig7_published)
    modules = (*figures, ornl_future, ornl_mechanism)
    for module in (*modules, jitsev_validation, mccord_batch, mccord_linear, mccord_warmup):
        for preset, executor in studies.EXECUTORS.items():
            content = {**module.definition(preset), "executor": executor}
            assert Study.from_dict(content, tmp_path / preset).plan().trials
    for preset, shares in noisy_labels.SHARES.items():
        for share in shares:
            content = noisy_labels.definition(preset, share, "digits", "flipped.parquet")
            assert Study.from_dict(content, tmp_path / "noisy").plan().trials
    for preset in jitsev_throughput.WORKERS:
        assert Study.from_dict(jitsev_throughput.definition(preset), tmp_path / "j2").plan().trials
    for preset in studies.EXECUTORS:
        weights = None if preset == "gpu" else "/weights.safetensors"
        content = ornl_pretrained.definition(preset, weights)
        assert Study.from_dict(content, tmp_path / "o7").plan().trials


def test_presets_of_selections_are_fair() -> None:
    """Equal steps, one extractor, map and control per seed, tuning on more than one seed."""
    figures = (ornl_fig6, ornl_fig7, ornl_fig7_again, ornl_fig7_published)
    for module in (*figures, ornl_future, ornl_mechanism):
        for study in module.STUDIES.values():
            assert study["base"]["budget"] == "steps"
            assert all("seed" in step["each"] for step in study["steps"].values())
            if "tune" in study:
                assert study["base"]["validation"]
                assert study.get("tune_seeds", study["seeds"]) >= 2


@pytest.mark.parametrize("recipe", [ornl_fig7_again, ornl_fig7_published])
@pytest.mark.parametrize("preset", ["smoke", "gpu", "paper"])
def test_figure_7_again_has_other_seeds_and_otherwise_its_settings(
    preset: str, recipe: Any
) -> None:
    first, again = ornl_fig7.STUDIES[preset], recipe.STUDIES[preset]
    assert min(again["seeds"]) >= first["seeds"]
    if recipe is ornl_fig7_published:
        assert not set(again["seeds"]) & set(ornl_fig7_again.STUDIES[preset]["seeds"])
    chosen = {"batch_size", "weight_decay", "lr", "validation"}
    for name, value in again["base"].items():
        if name not in chosen:
            assert first["base"][name] == value
    extractors = [dict(study["steps"]["extractor"]) for study in (first, again)]
    for extractor in extractors:
        extractor.pop("draws", None)
    assert extractors[1].pop("weight_decay") == 5e-4  # the default, which the first one has
    assert extractors[0] == extractors[1]
