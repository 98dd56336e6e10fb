"""Recompute the verdicts of a report from trials.parquet, with numpy and scipy alone."""

import json
from pathlib import Path
from typing import Any

import finished_study
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from thresher.report.page import write_report
from thresher.study.study import Study

SETTINGS = (32, 128, 512)
ARMS = ("full", "random", "network")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    content = finished_study.definition(margin=0.2)
    study = finished_study.write(
        Study.from_dict(content, tmp_path_factory.mktemp("recompute") / "study"), spread=0.6
    )
    return write_report(study).parent


def _values(report: Path) -> dict[int, np.ndarray]:
    """Return the accuracies of each batch size, (arms, seeds)."""
    rows = [row for row in pq.read_table(report / "trials.parquet").to_pylist() if row["reported"]]
    found = {(r["batch_size"], r["selection"], r["seed"]): r["value"] for r in rows}
    seeds = sorted({row["seed"] for row in rows})
    return {b: np.array([[found[b, a, s] for s in seeds] for a in ARMS]) for b in SETTINGS}


def _variances(values: dict[int, np.ndarray]) -> dict[int, float]:
    """Return the variance of a run in each setting, from the two-way layout arms × seeds."""
    variances = {}
    for batch, y in values.items():
        left = y - y.mean(axis=0) - y.mean(axis=1, keepdims=True) + y.mean()
        variances[batch] = (left**2).sum() / ((y.shape[0] - 1) * (y.shape[1] - 1))
    return variances


def _sd(verdict: dict[str, Any], values: dict[int, np.ndarray], resolution: float) -> float:
    """Return sd from the arms and settings that the report says it is pooled over."""
    pair = [ARMS.index(verdict["arm"]), ARMS.index(verdict["baseline"])]
    batch = verdict["cell"]["batch_size"]
    if verdict["pooled_arms"] == 0:
        differences = values[batch][pair[0]] - values[batch][pair[1]]
        return float(np.sqrt(differences.var(ddof=1) + resolution**2 / 6))
    arms = pair if verdict["pooled_arms"] == 2 else list(range(len(ARMS)))
    variances = _variances({b: y[arms] for b, y in values.items()})
    others = float(np.mean([v for b, v in variances.items() if b != batch]))
    pooled = float(np.mean(list(variances.values())))
    variance = max(pooled, (variances[batch] + others) / 2)
    if verdict["pooled_cells"] == 1:
        variance = variances[batch]
    return float(np.sqrt(2 * (variance + resolution**2 / 12)))


def _holm(p: list[float]) -> list[float]:
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, at in enumerate(np.argsort(p, kind="stable")):
        largest = max(largest, min(1.0, p[at] * (len(p) - rank)))
        adjusted[at] = largest
    return adjusted


@pytest.mark.slow
def test_the_verdicts_of_each_setting_follow_from_the_trials(report: Path) -> None:
    printed: dict[str, Any] = json.loads((report / "report.json").read_text())
    values = _values(report)
    p = []
    for verdict in printed["verdicts"]:
        arm, baseline = (ARMS.index(verdict[key]) for key in ("arm", "baseline"))
        batch = verdict["cell"].get("batch_size")
        every = [values[batch]] if batch else list(values.values())
        differences = np.mean([y[arm] - y[baseline] for y in every], axis=0)
        n = len(differences)
        sd = verdict["sd"]
        if batch:  # over all settings, errors that they share count as well
            sd = _sd(verdict, values, printed["resolution"])
        error = sd / np.sqrt(n)
        mean, df = differences.mean(), verdict["df"]
        half = stats.t.ppf(0.975, df) * error
        p.append(2 * stats.t.sf(abs(mean) / error, df))
        assert verdict["sd"] == pytest.approx(sd)
        assert (verdict["mean"], verdict["p"]) == pytest.approx((mean, p[-1]))
        assert (verdict["low"], verdict["high"]) == pytest.approx((mean - half, mean + half))
        assert n == verdict["seeds"] == 5
    adjusted = _holm(p)
    assert [v["p_adjusted"] for v in printed["verdicts"]] == pytest.approx(adjusted)
    words = [v["word"] for v in printed["verdicts"]]
    significant = [word in ("better", "worse") for word in words]
    assert significant == [one < printed["level"] for one in adjusted]
    assert any(significant)
    assert not all(significant)


@pytest.mark.slow
def test_the_page_prints_what_the_recomputation_needs(report: Path) -> None:
    page = (report / "index.html").read_text()
    printed: dict[str, Any] = json.loads((report / "report.json").read_text())
    for verdict in printed["verdicts"]:
        assert f"{verdict['mean']:+.2f}" in page
        assert f"{verdict['sd']:.3f}" in page
        assert f"{verdict['df']:.1f}" in page
    assert "3 arms × 3 settings" in page
    assert f"the resolution is {printed['resolution']:.6g}" in page
    for column in ("degrees of freedom", "sd from", '<th class="n">p</th>', "p (Holm)"):
        assert column in page
