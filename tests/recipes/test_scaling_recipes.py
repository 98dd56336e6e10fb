"""The recipes that predict; they run no network."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from thresher.cli.reproduce import Reproduce, reproduce
from thresher.recipes import find


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("records")
    outcome = reproduce(Reproduce(name="jitsev-records", out=out))
    assert "the paper says" in outcome.text
    written = json.loads((out / "recipe.json").read_text())
    assert written["rows"] == outcome.data["rows"]
    return list(outcome.data["rows"])


def test_the_list_names_the_recipes_of_scaling() -> None:
    names = {recipe["name"] for recipe in reproduce(Reproduce()).data["recipes"]}
    assert {"jitsev-records", "ornl-fig8", "keuper-limits"} <= names


def test_records_are_within_a_third_at_the_median(records: list[dict[str, Any]]) -> None:
    assert len(records) == 8
    assert median(abs(r["predicted_s"] / r["published_s"] - 1) for r in records) <= 0.30


def test_no_record_is_beyond_a_factor_of_two_unless_explained(
    records: list[dict[str, Any]],
) -> None:
    for r in records:
        assert 0.5 <= r["ratio"] <= 2 or r["note"]
    assert sum(not 0.5 <= r["ratio"] <= 2 for r in records) <= 1


def test_published_times_are_the_tables(records: list[dict[str, Any]]) -> None:
    minutes = [round(r["published_s"] / 60, 1) for r in records]
    assert minutes == [29 * 60, 60, 30, 15, 6.6, 1.8, 2.0, 1.2]


def test_a_row_does_not_teach_its_own_prediction() -> None:
    from dataclasses import replace

    from thresher.lab.records import RECORDS, leave_one_out
    from thresher.models.registry import build
    from thresher.scaling.skeleton import skeleton

    profile = skeleton(build("resnet50", 1000), "resnet50", (3, 224, 224), 1000, 32)
    few = RECORDS[:3]
    before = leave_one_out(profile, few)[0].predicted_s
    changed = (replace(few[0], published_s=few[0].published_s * 5), *few[1:])
    assert leave_one_out(profile, changed)[0].predicted_s == before


def test_fig8_puts_ddp_above_horovod_and_draws(tmp_path: Path) -> None:
    result = find("ornl-fig8").run("smoke", tmp_path)
    curves = result.data["efficiency"]
    for ours, theirs in zip(curves["ddp, ring"], curves["horovod, ring"], strict=True):
        assert ours >= theirs - 1e-9
    assert result.rows[0].holds == "yes"
    assert all(Path(figure).stat().st_size > 5_000 for figure in result.data["figures"])


@pytest.mark.slow  # times AlexNet and GoogLeNet
def test_limits_are_measured_on_both_networks(tmp_path: Path) -> None:
    from thresher.recipes.keuper_limits import run

    result = run(image_size=16, batch=4, seconds=0.05)(tmp_path)
    assert [row.claim for row in result.rows] == [*4 * ["K1"], *3 * ["K2"], "K3"]
    # The published weights: 60,965,224 of AlexNet (two groups), 13,378,280 of GoogLeNet with both
    # auxiliary classifiers.
    assert result.data["gradient_bytes"]["AlexNet"] == 4 * 60_965_224
    assert result.data["gradient_bytes"]["GoogLeNet"] == 4 * 13_378_280
    assert (tmp_path / "alexnet-small.png").exists()
    assert result.rows[-1].holds == "yes"
