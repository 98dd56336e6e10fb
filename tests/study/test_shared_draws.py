"""Runs that share a draw of a random step are not independent, whatever is compared."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from thresher import analyse
from thresher.study.analysis import Analysis
from thresher.study.comparisons import ArmComparison
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial
from thresher.study.survival import Times, log_rank_p_of_units

END = 130.0
ACCURACY = ComparisonConfig(compare="arm", margin=0.3)
TIME = ComparisonConfig(compare="arm", metric="time_to_target")


def study(
    values: np.ndarray, draws: Callable[[int], dict[str, str]], config: ComparisonConfig
) -> Analysis:
    """Analyse values (cells, 2 arms, seeds); the second arm depends on `draws` of a seed."""
    trials = []
    for cell, arm, seed in np.ndindex(*values.shape):
        value = float(values[cell, arm, seed])
        late = config is TIME and value > END
        trials.append(
            Trial(
                cell={"batch_size": cell, "arm": ("full", "network")[arm]},
                seed=seed,
                value=None if late else value,
                end=END,
                draws=draws(seed) if arm else {},
            )
        )
    return analyse(trials, config)


def share_with_a_difference(analyses: Sequence[Analysis]) -> float:
    words = [[c.verdict in ("better", "worse") for c in a.verdicts] for a in analyses]
    return float(np.mean([any(one) for one in words]))


def times_by_draw() -> np.ndarray:
    """Return times, (1, 2, 16), that depend on the draw of the second arm: three are late."""
    random = np.random.default_rng(0)
    values = 100 * np.exp(0.05 * random.standard_normal((1, 2, 16)))
    values[:, 1] *= np.tile([1.2, 1.25, 1.5, 1.0], 4)
    return values


def test_times_of_runs_that_share_draws_are_compared_by_draw() -> None:
    values = times_by_draw()
    (alone,) = study(values, lambda seed: {}, TIME).verdicts
    assert alone.verdict == "worse"
    (found,) = study(values, lambda seed: {"extractor": str(seed % 4)}, TIME).verdicts
    assert (found.n, found.df, found.draws) == (4, 3, (4, 4, 4, 4))
    assert found.p >= 2 / 16
    assert found.verdict == "not enough runs"
    assert found.difference == pytest.approx(alone.difference)
    assert found.high - found.low > 2 * (alone.high - alone.low)
    assert "4 draws of 4 seeds each; 5 runs did not reach the target" in found.sentence


def test_units_are_exchanged_as_a_whole() -> None:
    arrived = np.ones(4, bool)
    early = Times(np.array([1.0, 2.0, 3.0, 4.0]), arrived)
    late = Times(np.array([5.0, 6.0, 7.0, 8.0]), arrived)
    assert log_rank_p_of_units([(early, late)], np.array([0, 0, 1, 1])) == pytest.approx(2 / 4)
    assert log_rank_p_of_units([(early, late)], np.arange(4)) == pytest.approx(2 / 16)
    assert log_rank_p_of_units([(early, late)] * 3, np.arange(4)) == pytest.approx(2 / 16)
    assert log_rank_p_of_units([(early, late)], np.zeros(4, int)) == 1


@pytest.mark.slow  # simulates 150 studies
@pytest.mark.parametrize(("cells", "seeds", "draws"), [(1, 16, 4), (3, 16, 4), (6, 6, 6)])
def test_equal_times_differ_in_at_most_five_percent(cells: int, seeds: int, draws: int) -> None:
    random = np.random.default_rng(draws)
    analyses = []
    for _ in range(150):
        spread = 0.15 * random.standard_normal((cells, 2, seeds))
        spread[:, 1] += np.tile(random.normal(0, 0.3, draws), seeds // draws)
        own = {seed: {"extractor": str(seed % draws)} for seed in range(seeds)}
        analyses.append(study(100 * np.exp(spread), own.__getitem__, TIME))
    # 150 studies find a true rate of 5 % within 1.8 points (one standard deviation).
    assert share_with_a_difference(analyses) <= 0.08


@pytest.mark.slow  # simulates 150 studies
def test_steps_that_are_drawn_three_and_four_times_keep_the_rate() -> None:
    """Groups by one step average over all draws of the other, whose luck then looks like none."""
    random = np.random.default_rng(1)
    analyses = []
    for _ in range(150):
        values = 80 + 0.25 * random.standard_normal((1, 2, 12))
        values[:, 1] += np.tile(random.normal(0, 0.5, 4), 3)
        crossed = {s: {"weights": str(s % 3), "selection": str(s % 4)} for s in range(12)}
        analyses.append(study(values, crossed.__getitem__, ACCURACY))
    assert share_with_a_difference(analyses) <= 0.08


def test_steps_whose_draws_are_nested_count_as_the_coarser() -> None:
    values = 80 + np.random.default_rng(2).normal(0, 0.25, (1, 2, 8))
    nested = {s: {"weights": str(s % 2), "selection": str(s % 4)} for s in range(8)}
    (found,) = study(values, nested.__getitem__, ACCURACY).verdicts
    assert (found.n, found.draws) == (2, (4, 4))


def one_draw_left() -> ArmComparison:
    """Return a comparison whose paired seeds all have the first of two draws."""
    trials = [
        Trial(
            cell={"arm": arm},
            seed=seed,
            value=80 + 0.1 * seed**0.5 + (arm == "network"),
            draws={"extractor": str(seed % 2)} if arm == "network" else {},
        )
        for arm in ("full", "network")
        for seed in range(8)
        if arm == "network" or seed % 2 == 0
    ]
    return analyse(trials, ACCURACY).verdicts[0]


def test_pairs_that_all_have_the_same_draw_are_one() -> None:
    found = one_draw_left()
    assert (found.n, found.verdict, found.p) == (1, "not enough runs", 1)
    assert "One draw gives a difference of +1.00 points; at least three" in found.sentence


def test_the_sentence_counts_draws_and_not_seeds() -> None:
    random = np.random.default_rng(3)
    values = 80 + 0.5 * random.standard_normal((2, 2, 16))
    analysis = study(values, lambda seed: {"extractor": str(seed % 4)}, ACCURACY)
    for found in analysis.verdicts:
        assert "4 draws of 4 seeds each, 3 degrees of freedom" in found.sentence
        needed, (low, high) = found.seeds_needed, found.seeds_needed_range
        assert f"takes about {needed:,} such draws ({low:,} to {high:,})" in found.sentence
        assert found.to_dict()["draws"] == (4, 4, 4, 4)
    (without, *_) = study(values, lambda seed: {"extractor": str(seed)}, ACCURACY).verdicts
    assert without.draws == ()
    assert "16 seeds, " in without.sentence


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 4, 8])
def test_intervals_of_restricted_means_cover_the_difference(n: int) -> None:
    random = np.random.default_rng(n)
    covered = []
    for _ in range(600):
        values = 100 * np.exp(0.3 * random.standard_normal((1, 2, n)))
        (found,) = study(values, lambda seed: {}, TIME).verdicts
        if "censored" in found.sentence:
            covered.append(found.low <= 0 <= found.high)
    assert 0.93 <= np.mean(covered) <= 0.985
