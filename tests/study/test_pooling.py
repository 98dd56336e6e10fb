"""The pooled error has the power and the error rates that studies promise, by simulation."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from thresher.study.comparisons import MetricScale, compare_cells, pair_tests
from thresher.study.pooling import StudyError
from thresher.study.statistics import Verdict, judge
from thresher.study.summaries import CellSummary

MARGIN = 0.3
ARMS = ("full", "random", "network")
PAIRS = [("random", "full"), ("network", "full"), ("network", "random")]
SD = 0.25


def summaries(values: np.ndarray, draws: int | None = None) -> list[CellSummary]:
    """Return cells for values (cells, arms, seeds); arms after the first have `draws` draws."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("mean", "sd", "validation_accuracy", "seconds", "time_to_target", "train_samples")
    )
    cells = []
    for batch, of_batch in enumerate(values):
        for arm, of_arm in zip(ARMS, of_batch, strict=False):
            shares = draws is not None and arm != "full"
            cells.append(
                CellSummary(
                    cell={"batch_size": batch, "selection": arm},
                    n=len(of_arm),
                    values=dict(enumerate(of_arm.tolist())),
                    low=0.0,
                    high=0.0,
                    diverged=0,
                    missing=0,
                    draws={s: {arm: str(s % (draws or 1))} for s in range(len(of_arm)) if shares},
                    **nothing,
                )
            )
    return cells


def verdicts(values: np.ndarray, resolution: float = 0, draws: int | None = None) -> list[Verdict]:
    pairs = PAIRS if values.shape[1] == 3 else [("random", "full")]
    scale = MetricScale("points", MARGIN, resolution=resolution)
    _, tested = pair_tests(summaries(values, draws), "selection", pairs, scale)
    return judge(tested, MARGIN)


def share_with_a_difference(studies: np.ndarray, **more: Any) -> float:
    return float(
        np.mean([any(v.word in ("better", "worse") for v in verdicts(s, **more)) for s in studies])
    )


def null_studies(
    random: np.random.Generator, count: int, shape: tuple[int, int, int], sd: Any = SD
) -> np.ndarray:
    """Return studies (count, cells, arms, seeds) whose arms share effects of the seed."""
    cells, _, seeds = shape
    level = 80 + random.normal(0, 5, (count, cells, 1, 1))
    return (
        level
        + random.normal(0, 0.5, (count, cells, 1, seeds))
        + sd * random.standard_normal((count, *shape))
    )


@pytest.mark.slow
def test_one_point_is_found_with_four_seeds_in_a_grid_of_18_cells() -> None:
    studies = null_studies(np.random.default_rng(1), 400, (6, 3, 4))
    studies[:, 2, 2] += 1.0  # network, at the third batch size only
    found = 0
    for study in studies:
        by_pair = verdicts(study)
        assert len(by_pair) == 21
        at = 7 + 1 + 2  # network - full: after random - full and after its own mean over cells
        assert by_pair[at].paired.mean == pytest.approx((study[2, 2] - study[2, 0]).mean())
        found += by_pair[at].word == "better"
    assert found / len(studies) >= 0.85  # 0.88 of 3,000 studies


HETEROGENEOUS = {
    "equal": np.ones((6, 3, 1)),
    "one cell of twice the spread": np.array([2, 1, 1, 1, 1, 1.0])[:, None, None]
    * np.ones((1, 3, 1)),
    "one cell of three times the spread": np.array([3, 1, 1, 1, 1, 1.0])[:, None, None]
    * np.ones((1, 3, 1)),
    "spread grows with the batch": (2 ** np.linspace(0, 1, 6))[:, None, None] * np.ones((1, 3, 1)),
    "one arm of twice the spread": np.ones((6, 1, 1)) * np.array([1, 2, 1.0])[:, None],
    "one arm of five times the spread": np.ones((6, 1, 1)) * np.array([1, 5, 1.0])[:, None],
}


@pytest.mark.slow  # simulates 600 studies
@pytest.mark.parametrize("kind", HETEROGENEOUS)
def test_null_studies_report_a_difference_in_at_most_five_percent(kind: str) -> None:
    studies = null_studies(np.random.default_rng(2), 600, (6, 3, 4), SD * HETEROGENEOUS[kind])
    assert share_with_a_difference(studies) <= 0.05


@pytest.mark.slow  # simulates 600 studies
@pytest.mark.parametrize("shape", [(2, 2, 8), (3, 3, 4)])
@pytest.mark.parametrize("factor", [2, 4])
def test_few_cells_of_unequal_spread_keep_the_rate(
    shape: tuple[int, int, int], factor: float
) -> None:
    spread = np.where(np.arange(shape[0]) == shape[0] - 1, factor, 1)[:, None, None]
    studies = null_studies(np.random.default_rng(13), 600, shape, SD * spread)
    # 600 studies find a true rate of 5 % within 0.9 points (one standard deviation).
    assert share_with_a_difference(studies) <= 0.06


def test_a_noisy_cell_does_not_hide_what_a_quiet_one_shows() -> None:
    spread = np.array([1, 4.0])[:, None, None]
    studies = null_studies(np.random.default_rng(14), 100, (2, 3, 8), SD * spread)
    studies[:, 0, 2] += 0.7  # network, at the batch size of small spread
    at = 3 + 1  # network - full: after random - full and after its own mean over cells
    words = [verdicts(study)[at].word for study in studies]
    assert words.count("better") >= 90


@pytest.mark.parametrize("factor", [5, 20])
def test_a_noisy_arm_does_not_hide_what_two_quiet_ones_show(factor: float) -> None:
    spread = np.array([1, 1, factor])[:, None]
    studies = null_studies(np.random.default_rng(15), 100, (2, 3, 8), SD * spread)
    studies[:, 0, 1] += 0.8  # random - full; a t-test of its own finds it in 90 %
    words = [verdicts(study)[1].word for study in studies]
    assert words.count("better") >= 90


@pytest.mark.slow  # simulates 1,000 studies
@pytest.mark.parametrize(("shape", "factor"), [((3, 3, 3), 20), ((2, 3, 4), 20), ((1, 3, 4), 5)])
def test_one_arm_of_large_spread_keeps_the_rate(shape: tuple[int, int, int], factor: float) -> None:
    spread = np.array([1, 1, factor])[:, None]
    studies = null_studies(np.random.default_rng(16), 1000, shape, SD * spread)
    # Before arms were tested one by one: 8.6, 6.8 and 5.8 %.
    assert share_with_a_difference(studies) <= 0.05


@pytest.mark.slow  # simulates 600 studies
def test_null_studies_with_random_spreads_and_rounding() -> None:
    random = np.random.default_rng(3)
    studies = null_studies(random, 600, (6, 3, 4), random.uniform(0.2, 1.5, (600, 6, 1, 1)))
    step = 100 / 360
    studies = np.round(studies / step) * step
    assert share_with_a_difference(studies, resolution=step) <= 0.05


@pytest.mark.slow  # simulates many studies
def test_null_studies_with_heavy_tails_and_few_seeds() -> None:
    random = np.random.default_rng(4)
    heavy = 80 + SD * random.standard_t(3, (600, 3, 3, 3))
    assert share_with_a_difference(heavy) <= 0.05


@pytest.mark.slow  # simulates 500 studies
@pytest.mark.parametrize(("seeds", "draws"), [(8, 4), (8, 8), (4, 4)])
def test_draws_that_seeds_and_cells_share_keep_the_rate(seeds: int, draws: int) -> None:
    random = np.random.default_rng(5)
    studies = null_studies(random, 500, (6, 3, seeds))
    effect = random.normal(0, 0.2, (500, 1, 2, draws))
    studies[:, :, 1:] += np.tile(effect, seeds // draws)
    assert share_with_a_difference(studies, draws=draws) <= 0.05


@pytest.mark.slow
def test_draws_count_because_their_luck_looks_like_an_effect() -> None:
    random = np.random.default_rng(12)
    studies = null_studies(random, 150, (6, 3, 8))
    studies[:, :, 1:] += np.tile(random.normal(0, 0.4, (150, 1, 2, 2)), 4)
    assert share_with_a_difference(studies) > 0.15
    assert share_with_a_difference(studies, draws=2) <= 0.05


def test_the_error_is_that_of_a_two_way_analysis_of_variance() -> None:
    values = np.random.default_rng(17).normal(0, 1, (1, 3, 5))
    error = StudyError([{arm: dict(enumerate(v)) for arm, v in enumerate(values[0])}])
    found = error.in_cell(0, 0, 1)
    assert found is not None
    # Fit arm and seed effects by least squares: 15 runs, 3 + 5 - 1 coefficients.
    design = np.array(
        [[*np.eye(3)[a], *np.eye(5)[s][1:]] for a in range(3) for s in range(5)], float
    )
    _, (rest,), rank, _ = np.linalg.lstsq(design, values[0].ravel(), rcond=None)
    assert (found.variance, found.df) == (pytest.approx(rest / (15 - rank)), 8)


def test_two_arms_in_one_cell_are_tested_as_scipy_does() -> None:
    values = np.random.default_rng(7).normal(80, 1, (1, 2, 6))
    (verdict,) = verdicts(values)
    assert verdict.paired.p == pytest.approx(stats.ttest_rel(*values[0][::-1]).pvalue)
    assert verdict.paired.pooled is None


def test_the_sentence_says_what_was_pooled() -> None:
    random = np.random.default_rng(8)
    values = null_studies(random, 1, (6, 3, 4))[0]
    comparisons = compare_cells(
        summaries(values), "selection", PAIRS, MetricScale("points", MARGIN)
    )
    pooled = [c for c in comparisons if c.cell and c.pooled_cells == 6]
    assert pooled
    assert 20 < max(c.df for c in pooled) <= 36
    assert "error pooled over 6 cells, " in pooled[0].sentence


def test_a_cell_with_much_larger_errors_is_judged_by_its_own() -> None:
    values = null_studies(np.random.default_rng(9), 1, (6, 3, 4))[0]
    values[0] += np.random.default_rng(10).normal(0, 5, (3, 4))
    comparisons = compare_cells(
        summaries(values), "selection", PAIRS, MetricScale("points", MARGIN)
    )
    assert {c.pooled_cells for c in comparisons if c.cell == {"batch_size": 0}} <= {0, 1}


def test_an_arm_without_runs_is_left_out_of_the_error() -> None:
    values = null_studies(np.random.default_rng(11), 1, (2, 3, 4))[0]
    cells = summaries(values)
    for cell in cells:
        if cell.cell["selection"] == "network":
            cell.values.clear()
    comparisons = compare_cells(cells, "selection", PAIRS, MetricScale("points", MARGIN))
    by_pair = {(c.arm, c.baseline): c for c in comparisons if c.cell == {"batch_size": 1}}
    assert by_pair["network", "full"].n == 0
    assert "No run of one has a partner" in by_pair["network", "full"].sentence
    assert by_pair["random", "full"].n == 4
    assert by_pair["random", "full"].df >= 3


def test_a_draw_that_all_seeds_share_does_not_cost_degrees_of_freedom() -> None:
    values = null_studies(np.random.default_rng(1), 1, (6, 3, 4))[0]
    none, one, four = (
        next(v.paired for v in verdicts(values, draws=d) if v.paired.n == 4) for d in (None, 1, 4)
    )
    assert none.df == one.df > 6
    # Drawn for each seed and used in every cell: only the means over cells can be compared.
    assert four.df <= 6
