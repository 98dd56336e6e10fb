"""The rows in `results/` are what today's analysis says of the runs that are stored beside them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from thresher.recipes import (
    dynamic_pruning,
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
    ornl_pretrained,
    ornl_table1,
)
from thresher.recipes.base import ClaimRow
from thresher.study import reading
from thresher.study.analysis import Analysis, analyse
from thresher.study.results import Trial
from thresher.study.tasks import Values

RESULTS = Path(__file__).parents[2] / "results"
COMPARED = ("paper", "measured", "interval", "holds")


def _stored(name: str) -> Values:
    content: Values = json.loads((RESULTS / name / "recipe.json").read_text())
    return content


def _trials(folder: str, axes: Iterable[str], draws: int | None = None) -> list[Trial]:
    """Read the reported trials; `draws` extractors are shared by the seeds of filtered arms."""
    rows = pq.read_table(RESULTS / folder / "report" / "trials.parquet").to_pylist()
    trials = []
    for row in rows:
        cell = {axis: row[axis] for axis in axes}
        arm = str(cell.get("arm", cell.get("selection")))
        shared = draws is not None and arm.startswith("network")
        trials.append(
            Trial(
                cell=cell,
                seed=row["seed"],
                value=row["value"],
                accuracy=row["accuracy"],
                reported=row["reported"],
                draws={"extractor": str(row["seed"] % draws)} if shared and draws else {},
            )
        )
    return trials


def _analysis(folder: str, content: Values, draws: int | None = None) -> Analysis:
    definition = reading.from_dict(content)
    trials = _trials(folder, definition.untuned_axes, draws)
    return analyse([trial for trial in trials if trial.reported], definition)


def _check(name: str, rows: list[ClaimRow], compared: Iterable[str] = COMPARED) -> None:
    stored = _stored(name)["rows"]
    assert len(rows) == len(stored)
    for row, old in zip(rows, stored, strict=True):
        new = row.to_dict()
        assert {key: new[key] for key in compared} == {key: old[key] for key in compared}


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("dynamic-pruning", dynamic_pruning),
        ("mccord-batch", mccord_batch),
        ("mccord-linear", mccord_linear),
        ("mccord-warmup", mccord_warmup),
        ("ornl-fig5", ornl_fig5),
        ("ornl-future", ornl_future),
    ],
)
def test_one_study(name: str, recipe: Any) -> None:
    _check(name, recipe.rows(_analysis(name, recipe.definition("gpu"))))


def test_weight_decay_that_was_tuned() -> None:
    """Which one was chosen is not in the table of trials, so `measured` is not compared."""
    rows = ornl_fig6.rows(_analysis("ornl-fig6", ornl_fig6.definition("gpu")))
    _check("ornl-fig6", rows, ("paper", "interval", "holds"))


def test_extractors_that_seeds_share() -> None:
    content = ornl_fig7.definition("gpu")
    draws = content["steps"]["extractor"]["draws"]
    rows = ornl_fig7.rows(_analysis("ornl-fig7/study", content, draws))
    _check("ornl-fig7", rows)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("ornl-fig7-again", ornl_fig7_again), ("ornl-fig7-published", ornl_fig7_published)],
)
def test_two_comparisons_of_figure_7_again(name: str, recipe: Any) -> None:
    content = recipe.definition("gpu")
    draws = content["steps"]["extractor"]["draws"]
    _check(name, recipe.rows(_analysis(name, content, draws)))


def test_pretrained_extractors() -> None:
    rows = ornl_pretrained.rows(
        _analysis("ornl-pretrained/study", ornl_pretrained.definition("gpu"))
    )
    _check("ornl-pretrained", rows)


def test_noisy_labels() -> None:
    analyses = {
        share: _analysis(
            f"noisy-labels/wrong-{100 * share:g}/study",
            noisy_labels.definition("gpu", share, Path("flipped"), Path("oracle")),
        )
        for share in noisy_labels.SHARES["gpu"]
    }
    _check("noisy-labels", noisy_labels.rows(analyses))


def test_rates_that_validation_chose() -> None:
    tuned = _trials("jitsev-validation/tuned", ("batch_size", "lr"))
    others = _trials("jitsev-validation/inherited", ("batch_size",))
    _check("jitsev-validation", jitsev_validation.rows(tuned, others))


def test_maps() -> None:
    data = _stored("ornl-table1")["data"]
    rows = []
    for name, kind in ornl_table1.MAPS.items():
        maps = data[name]["maps"].items()
        noise = {model: [ornl_table1.MapNoise(**one) for one in each] for model, each in maps}
        rows += ornl_table1.rows(kind, noise, data[name]["eps"])
    _check("ornl-table1", rows)


def test_throughput() -> None:
    runs = _stored("jitsev-throughput")["data"]["runs"]
    trials = [Trial(cell={}, value=None, **run) for run in runs]
    _check("jitsev-throughput", jitsev_throughput.rows(trials))
