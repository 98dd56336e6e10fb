import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from thresher.errors import ThresherError
from thresher.recipes import ClaimRow, Recipe, RecipeResult, all_recipes, find
from thresher.recipes.support.differences import Either, PaperSettings, Span, differences
from thresher.recipes.support.studies import run_whole
from thresher.study.study import Study


def _one(out: Path) -> RecipeResult:
    row = ClaimRow("X1", "2", "2.1", "yes", note="close", values={"n": 4})
    return RecipeResult([row], {"value": 2.1})


def test_a_result_is_returned_and_written(tmp_path: Path) -> None:
    recipe = Recipe("x-one", "X1", "a title", {"smoke": _one})
    result = recipe.run("smoke", tmp_path)
    assert result.rows[0].holds == "yes"
    written = json.loads((tmp_path / "recipe.json").read_text())
    assert written["data"] == {"value": 2.1}
    assert written["rows"] == [row.to_dict() for row in result.rows]
    keys = ["claim", "paper", "measured", "holds", "interval", "note", "n"]
    assert list(written["rows"][0]) == keys


def test_the_command_of_a_result_names_its_table(tmp_path: Path) -> None:
    table = tmp_path / "my rows.toml"
    recipe = Recipe(
        "x-one", "X1", "a title", {"smoke": _one}, with_table=lambda out, table: _one(out)
    )
    recipe.run("smoke", tmp_path, table)
    made = json.loads((tmp_path / "recipe.json").read_text())["made"]
    assert made["command"] == f"thresher reproduce x-one --preset smoke --table '{table}'"


def test_no_claim_is_judged_while_a_task_failed(tmp_path: Path) -> None:
    """All arms of a filter failed, and the recipe said that the filter is no value of the arms."""
    script, cause = tmp_path / "train.py", tmp_path / "cause"
    script.write_text(
        "import os, sys\n"
        f"if sys.argv[1] == '2' and os.path.exists({str(cause)!r}): sys.exit('no such file')\n"
        "open(sys.argv[2] + '/result.json', 'w').write('{\"accuracy\": 0.5}')\n"
    )
    cause.touch()
    study = Study.from_dict(
        {
            "seeds": 2,
            "base": {"command": f"{sys.executable} -S {script} {{size}} {{out}} {{seed}}"},
            "grid": {"size": [1, 2]},
            "executor": {"kind": "in-process"},
        },
        tmp_path / "study",
    )
    with pytest.raises(ThresherError, match=r"2 tasks of the study failed; size=2.*exited with 1"):
        run_whole(study)
    cause.unlink()
    run_whole(study)  # runs what failed again
    assert study.status().complete


def test_a_preset_that_is_not_offered_is_refused_by_name(tmp_path: Path) -> None:
    recipe = Recipe("x-one", "X1", "a title", {"smoke": _one})
    with pytest.raises(ThresherError, match='x-one has no preset "paper"'):
        recipe.run("paper", tmp_path)
    assert not (tmp_path / "recipe.json").exists()


def test_a_verdict_is_one_of_four_words() -> None:
    with pytest.raises(ValueError, match="holds must be one of"):
        ClaimRow("X1", "2", "2.1", "perhaps")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Upper", "under_score", "", "a--b"])
def test_names_are_words_joined_by_dashes(name: str) -> None:
    with pytest.raises(ValueError, match="joined by dashes"):
        Recipe(name, "X1", "a title", {"smoke": _one})


def test_smoke_is_always_offered() -> None:
    with pytest.raises(ValueError, match="with smoke"):
        Recipe("x-one", "X1", "a title", {"gpu": _one})


def test_recipes_are_found_once_each_and_a_wrong_name_gets_a_hint() -> None:
    names = [recipe.name for recipe in all_recipes()]
    assert len(names) == len(set(names))
    with pytest.raises(ThresherError, match='there is no recipe "nothing-like-it"'):
        find("nothing-like-it")


def test_differences_from_the_paper_are_generated_from_the_settings(tmp_path: Path) -> None:
    published = {"data": "cifar10", "epochs": 50, "batch_size": [256, 1024], "optimizer": "sgd"}
    ours = {"data": "digits", "epochs": 50, "batch_size": [64, 1024], "lr": 0.3, "device": "cpu"}
    text = (
        "data digits instead of cifar10; batch size 64 · 1,024 instead of 256 · 1,024; "
        "not published: lr 0.3"
    )
    assert differences(ours, published) == text
    assert differences(published, published) == ""
    several = {"weight_decay": Either((0.005, 0.01)), "batch_size": Span(16, 20480)}
    assert differences({"weight_decay": 0.01, "batch_size": [16, 64, 20480]}, several) == ""
    assert differences({"weight_decay": 0.1, "batch_size": [16, 64]}, several) == (
        "weight decay 0.1 instead of 0.005 or 0.01; batch size 16 · 64 instead of 16 to 20,480"
    )
    recipe = Recipe("x-one", "X1", "a title", {"smoke": _one})
    paper = PaperSettings(published, {"smoke": ours})
    rows = replace(recipe, paper=paper).run("smoke", tmp_path).rows
    assert [row.differs for row in rows] == [text]
    assert json.loads((tmp_path / "recipe.json").read_text())["rows"][0]["differs"] == text


def test_what_a_recipe_leaves_at_a_default_is_named_among_its_differences() -> None:
    def of(name: str) -> str:
        paper = find(name).paper
        assert paper is not None
        return paper.differs("gpu")

    for name in ("fig6", "fig7", "future", "mechanism", "pretrained"):
        text = of(f"ornl-{name}")
        assert "tsne ours instead of sklearn-2020; eps that of the share to drop instead" in text
        assert "momentum 0.9" in text
        assert "schedule cosine" in text
    whole = "batch norm over the whole batch instead of local"
    for name in ("dynamic-pruning", "noisy-labels", "ornl-fig5", "ornl-future"):
        assert whole in of(name)
    assert "batch norm" not in of("ornl-fig6")  # one GPU in the paper, too
    assert "worker a core of the CPU instead of a GPU" in of("jitsev-throughput")


def test_every_recipe_says_how_each_preset_differs_from_the_paper() -> None:
    for recipe in all_recipes():
        assert recipe.paper is not None, recipe.name
        assert recipe.paper.published
        for preset in recipe.presets:
            assert recipe.paper.differs(preset), (recipe.name, preset)
