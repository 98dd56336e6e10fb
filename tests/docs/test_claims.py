"""The page of claims is what `results/` says, and nothing else."""

import importlib.util
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from thresher.recipes import all_recipes, stored_verdicts
from thresher.recipes.base import ClaimRow, Recipe, RecipeResult

ROOT = Path(__file__).parents[2]


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_tool", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> Any:
    return _load("claims")


def test_the_tables_on_filtering_are_those_of_the_results(tool: Any) -> None:
    filtering = _load("filtering")
    text = tool.FILTERING.read_text()
    assert filtering.fill(text, filtering.tables(tool.RESULTS)) == text, "run make claims"
    for name in ("filtering-clean", "filtering-noisy", "filtering-large"):
        assert f"images/{name}.png" in text
        assert (ROOT / "docs" / "images" / f"{name}.png").is_file()


@pytest.mark.slow
def test_figures_show_every_seed(tool: Any) -> None:
    filtering = _load("filtering")
    values = filtering.accuracies(tool.RESULTS)
    assert {len(seeds) for seeds in values.values()} == {8}
    shown = ((8, 8), (20, 8), (18, 16), (3, 30))  # arms at all batch sizes, and seeds
    for figure, (arms, seeds) in zip(filtering.figures(tool.RESULTS), shown, strict=True):
        dots = re.findall(r'<g id="PathCollection_\d+">(.*?)</g>\s*</g>', figure.svg, flags=re.S)
        assert [group.count("<use ") for group in dots] == arms * [seeds]


def test_the_page_is_generated_from_the_results(tool: Any) -> None:
    results = tool.collect()
    assert (ROOT / "docs" / "claims.md").read_text() == tool.page(results), "run make claims"
    assert stored_verdicts() == tool.verdicts(results), "run make claims"


def test_every_number_on_the_page_is_in_a_stored_row(tool: Any) -> None:
    results = tool.collect()
    stored = set(
        re.findall(
            r"\d[\d,.]*\d|\d", json.dumps(list(map(asdict, results.values())), ensure_ascii=False)
        )
    )
    table = tool.page(results).split("|---|---|---|---|---|---|\n")[1].split("\n\n")[0]
    ids = {claim.id for claim in tool.CLAIMS}
    for line in table.splitlines():
        name, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert name in ids
        if "not run" not in cells[0] and "a feature" not in cells[0]:
            assert set(re.findall(r"\d[\d,.]*\d|\d", " ".join(cells[:2]))) <= stored


def test_the_short_table_counts_every_row(tool: Any) -> None:
    results = tool.collect()
    short = tool.page(results).split(tool.EVERY)[0]
    counted = sum(map(int, re.findall(r"\b(?:yes|partly|no|not enough runs) (\d+)", short)))
    assert counted == sum(len(tool._ids(row["claim"])) for r in results.values() for row in r.rows)
    assert "no 1 (4 predicted)" in short  # O5, of which nothing was measured


def test_every_recipe_tests_a_claim_and_every_claim_has_a_recipe_or_a_guide(tool: Any) -> None:
    tested = {id for recipe in all_recipes() for id in tool._ids(recipe.claim)}
    known = {claim.id for claim in tool.CLAIMS}
    assert tested <= known
    # keuper-limits tests K1 to K3 in rows of their own.
    assert {c.id for c in tool.CLAIMS if not c.guide} - tested <= {"K2", "K3"}
    for claim in tool.CLAIMS:
        assert not claim.guide or (ROOT / "docs" / claim.guide).is_file()


def test_a_finished_recipe_is_stored_without_its_runs(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(out: Path) -> RecipeResult:
        for name in ("study/trials/a/figure.svg", "study/report/figure.svg"):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text("<svg/>")
        row = ClaimRow("O4", "2 | 3", "4 (n = 7)", "no", "1 … 2", "a note")
        return RecipeResult([row], {"seconds": [1.5]})

    recipe = Recipe("made-up", "O4", "made up", {"smoke": measure})
    recipe.run("smoke", tmp_path / "run")
    monkeypatch.setattr(tool, "RESULTS", tmp_path / "results")
    assert tool.store(tmp_path / "run") == "made-up"
    files = sorted(p.relative_to(tmp_path / "results") for p in (tmp_path / "results").rglob("*.*"))
    assert [str(file) for file in files] == [
        "made-up/recipe.json",
        "made-up/study/report/figure.svg",
    ]
    stored = tmp_path / "results/made-up/recipe.json"
    assert json.loads(stored.read_text())["data"] == {"seconds": [1.5]}
    (tmp_path / "run/study/report/trials.parquet").write_text("")  # which hold the runs
    (stored.parent / "remarks.txt").write_text("Seen after the run.\n")
    for old in ("old.svg", "study/report/old.svg"):
        (stored.parent / old).write_text("of the earlier run")
    tool.store(tmp_path / "run")
    assert (stored.parent / "remarks.txt").read_text() == "Seen after the run.\n"
    assert not list(stored.parent.rglob("old.svg"))
    assert "data" not in json.loads(stored.read_text())
    results = tool.collect(tmp_path / "results")
    assert results["made-up"].command == "thresher reproduce made-up --preset smoke"
    assert results["made-up"].hardware["cores"] >= 1
    page = tool.page(results)
    assert "| O4 | 2 \\| 3 | 4 (n = 7) | 1 … 2 | no | [made-up](#made-up), with a note |" in page
    assert "- *2 | 3*: a note" in page
    assert "**Note**: Seen after the run." in page
    assert (
        "| O1 | Table I: the share of CIFAR-10 that is noise on each extractor's map | not run |"
        in page
    )
