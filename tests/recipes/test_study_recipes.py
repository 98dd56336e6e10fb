"""Every recipe that is a study, end to end, on a few digits: the same code path as its presets."""

import sys
from pathlib import Path
from typing import Any

import pytest

from thresher.recipes import (
    jitsev_validation,
    mccord_batch,
    mccord_linear,
    mccord_warmup,
    ornl_fig5,
    ornl_fig6,
    ornl_fig7,
    ornl_table1,
)
from thresher.recipes.base import Recipe, RecipeResult
from thresher.recipes.support import mccord, studies

sys.path.append(str(Path(__file__).parent.parent / "study"))
from few_digits import make_pack

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
        extractor = {**base, "batch_size": 32}
        small["steps"] = studies.pipeline(extractor, 0.1)
    return small


def _check(result: RecipeResult, claim: str, lines: int) -> None:
    assert len(result.rows) == lines
    for line in result.rows:
        assert line.claim == claim
        assert line.measured


@pytest.mark.slow  # two studies of three arms
def test_figure_7(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ornl_fig7.STUDIES, "smoke", _small(ornl_fig7.STUDIES["smoke"], few))
    rates: dict[str, list[Any]] = {"batch_size": BATCHES, "lr": [0.05, 0.1]}
    monkeypatch.setitem(ornl_fig7.RATES, "smoke", rates)
    result = ornl_fig7.RECIPE.run("smoke", tmp_path)
    _check(result, "O4", 2 * len(BATCHES))
    assert result.data["lr"] in rates["lr"]
    assert Path(result.data["report"]).exists()


@pytest.mark.slow  # a study of three arms
def test_figure_6(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ornl_fig6.STUDIES, "smoke", _small(ornl_fig6.STUDIES["smoke"], few))
    result = ornl_fig6.RECIPE.run("smoke", tmp_path)
    _check(result, "O3", 2 * len(BATCHES))
    assert "wd" in result.rows[0].measured


@pytest.mark.slow  # a study with 18 trainings
def test_figure_5(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ornl_fig5.STUDIES, "smoke", _small(ornl_fig5.STUDIES["smoke"], few))
    result = ornl_fig5.RECIPE.run("smoke", tmp_path)
    _check(result, "O2", 5)
    assert set(result.data["preferred"].values()) <= set(BATCHES)


@pytest.mark.slow  # t-SNE of every seed
def test_table_1(few: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, base, _ = ornl_table1.EXTRACTORS["smoke"]
    small = (models[:1], {**base, "data": few, "epochs": 1, "warmup_epochs": 0}, 2)
    monkeypatch.setitem(ornl_table1.EXTRACTORS, "smoke", small)
    result = ornl_table1.RECIPE.run("smoke", tmp_path)
    _check(result, "O1", 1)
    for knee, default, eps in result.data["shares"]["tiny"]:
        assert 0 <= knee < 1
        assert 0 <= default <= 1
        assert eps > 0


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
    small = _small(jitsev_validation.STUDIES["smoke"], few)
    monkeypatch.setitem(jitsev_validation.STUDIES, "smoke", small)
    result = jitsev_validation.RECIPE.run("smoke", tmp_path)
    _check(result, "J3", len(BATCHES) - 1)
    assert set(result.data["chosen"]) == set(BATCHES)


def test_presets_of_every_size_expand(tmp_path: Path) -> None:
    """The gpu and paper presets cannot be run here, but their studies must be well-formed."""
    from thresher.study.study import Study

    for module in (ornl_fig5, ornl_fig6, ornl_fig7, jitsev_validation):
        for preset, study in module.STUDIES.items():
            content = {**study, "executor": studies.EXECUTORS[preset]}
            assert Study.from_dict(content, tmp_path / preset).plan().trials
