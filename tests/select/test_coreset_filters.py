"""Coreset and noise filters of the literature, on cases with known answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from thresher.data.overrides import OverrideLog
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths
from thresher.select.filters.coverage import CoverageFilter
from thresher.select.filters.dynamics import AUMFilter, EL2NFilter, UncertaintyFilter
from thresher.select.filters.knn import KNNFilter
from thresher.select.filters.moderate import ModerateFilter
from thresher.select.filters.prototypes import PrototypesFilter
from thresher.training.dynamics import Dynamics
from thresher.training.split import TrainingSplit


def scored(score: np.ndarray) -> Selection:
    n = len(score)
    ids = [str(row) for row in range(n)]
    return Selection(ids, np.zeros(n, int), np.ones(n, bool), score, [""] * n, "")


def test_ccs_cuts_the_hardest_and_levels_the_strata() -> None:
    """Sizes 600, 300, 60, 20 and 20 hardest; 200 of 1,000 stay: 20, then 60 each of three."""
    score = np.repeat([0.05, 0.3, 0.6, 0.9, 5.0], [600, 300, 60, 20, 20])
    order = np.random.default_rng(0).permutation(1000)
    fitted = CoverageFilter(drop=0.8, cutoff=0.02, strata=4).fit(
        None, np.zeros(1000, int), selections=[scored(score[order])]
    )
    kept = [int(fitted.keep_[score[order] == value].sum()) for value in (0.05, 0.3, 0.6, 0.9, 5.0)]
    assert kept == [60, 60, 60, 20, 0]
    again = CoverageFilter(drop=0.8, cutoff=0.02, strata=4, seed=1).fit(
        None, np.zeros(1000, int), selections=[scored(score[order])]
    )
    assert again.keep_.sum() == 200
    assert not np.array_equal(again.keep_, fitted.keep_)
    assert fitted.reason_[int(np.argmax(score[order] == 5.0))] == "above the cutoff"


def test_ccs_keeps_to_what_people_decided(tmp_path: Path) -> None:
    """Row 0 is the easiest, row 99 the hardest."""
    path = tmp_path / "scored.parquet"
    scored(np.arange(100.0)).save(path)
    log = OverrideLog(SelectionPaths(path).overrides)
    log.decide(["99", "98"], True, "", [True, True])
    log.decide(["0", "1"], False, "blurred", [True, True])
    for drop, cutoff in ((0.5, 0.1), (0.1, 0.1), (0.02, 0.02), (0.0, 0.0)):
        fitted = CoverageFilter(drop=drop, cutoff=cutoff, strata=5).fit(
            None, np.zeros(100, int), selections=[Selection.load(path)]
        )
        assert fitted.keep_[[0, 1, 98, 99]].tolist() == [False, False, True, True]
        assert (~fitted.keep_).sum() == max(2, round(100 * drop))
        assert (fitted.reason_[0], fitted.reason_[99]) == ("override: blurred", "override")


def test_ccs_drops_its_share_beside_what_people_dropped() -> None:
    """Half of five is 2; one more was dropped because 2.5 - 1 was rounded on its own."""
    decided = replace(scored(np.arange(5.0)), decided=np.arange(5) == 0, keep=np.arange(5) > 0)
    fitted = CoverageFilter(drop=0.5, cutoff=0.5).fit(None, np.zeros(5, int), selections=[decided])
    assert fitted.keep_.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("drop", [0.0, 0.05, 0.3])
def test_ccs_drops_its_share_even_below_the_cutoff(drop: float) -> None:
    score = np.random.default_rng(0).normal(size=400)
    fitted = CoverageFilter(drop=drop, cutoff=0.5).fit(
        None, np.zeros(400, int), selections=[scored(score)]
    )
    assert (~fitted.keep_).sum() == round(400 * drop)
    constant = CoverageFilter(drop=drop).fit(
        None, np.zeros(400, int), selections=[scored(np.ones(400))]
    )
    assert (~constant.keep_).sum() == round(400 * drop)


def test_ccs_puts_infinite_scores_into_the_outer_strata() -> None:
    """As those of a run that diverged; the strata are (-inf, 0.1), (0.5), (0.9, inf)."""
    values = (-np.inf, 0.1, 0.5, 0.9, np.inf)
    score = np.repeat(values, [10, 30, 40, 20, 40])
    fitted = CoverageFilter(drop=0.5, cutoff=0.1, strata=3).fit(
        None, np.zeros(140, int), selections=[scored(score)]
    )
    kept = [int(fitted.keep_[score == value].sum()) for value in values]
    assert (kept[0] + kept[1], kept[2], kept[3] + kept[4]) == (23, 23, 24)
    assert fitted.reason_.count("above the cutoff") == 14
    np.testing.assert_array_equal(fitted.score_, score.astype(np.float32))
    nothing_finite = CoverageFilter(drop=0.5).fit(
        None, np.zeros(4, int), selections=[scored(np.array([np.inf, -np.inf, np.inf, np.inf]))]
    )
    assert nothing_finite.keep_.sum() == 2


def test_ccs_refuses_scores_that_are_highest_for_easy_samples() -> None:
    easy = scored(np.arange(4.0))
    easy.meta = {"method": "el2n", "settings": {"side": "easy"}}
    with pytest.raises(ThresherError, match=r"el2n are highest for easy samples.*`side` hard"):
        CoverageFilter().fit(None, np.zeros(4, int), selections=[easy])


@pytest.mark.parametrize("method", ["uncertainty", "grid", "random", "moderate", "union"])
def test_ccs_refuses_scores_that_are_not_hardness(method: str) -> None:
    other = scored(np.arange(4.0))
    other.meta = {"method": method}
    sentence = rf"those of filter {method}, .*; give a selection of one of el2n, forgetting, aum, "
    with pytest.raises(ThresherError, match=sentence):
        CoverageFilter().fit(None, np.zeros(4, int), selections=[other])


@pytest.mark.parametrize("method", ["el2n", "label-errors", "ccs", "list", "another-package"])
def test_ccs_takes_scores_that_are_hardness(method: str) -> None:
    hard = scored(np.arange(4.0))
    hard.meta = {"method": method, "settings": {"side": "hard"}}
    fitted = CoverageFilter(drop=0.25, cutoff=0.25).fit(None, np.zeros(4, int), selections=[hard])
    assert fitted.keep_.tolist() == [True, True, True, False]


def test_ccs_takes_the_scores_of_one_selection() -> None:
    labels = np.zeros(4, int)
    with pytest.raises(ThresherError, match="selections must name one, whose scores are used, got"):
        CoverageFilter().fit(None, labels, selections=[])
    with pytest.raises(ThresherError, match='has no sample "3"; give selections of the same pack'):
        CoverageFilter().fit(None, labels, selections=[scored(np.ones(3))])


def test_moderate_keeps_the_median_of_each_class() -> None:
    random = np.random.default_rng(0)
    radius = np.concatenate([random.uniform(0, 10, 100), random.uniform(0, 1000, 100)])
    angle = random.uniform(0, 2 * np.pi, 200)
    labels = np.repeat([0, 1], 100)
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    for label in (0, 1):
        x[labels == label] -= x[labels == label].mean(axis=0)
    fitted = ModerateFilter(drop=0.5).fit(x + 7, labels)
    for label in (0, 1):
        distance = np.linalg.norm(x[labels == label], axis=1)
        apart = np.abs(distance - np.median(distance))
        assert set(np.flatnonzero(fitted.keep_[labels == label])) == set(np.argsort(apart)[:50])


def test_knn_finds_flipped_labels() -> None:
    random = np.random.default_rng(0)
    truth = np.arange(300) % 3
    x = np.eye(3)[truth] * 4 + random.normal(scale=0.5, size=(300, 3))
    flipped = np.zeros(300, bool)
    flipped[random.permutation(300)[:15]] = True
    labels = np.where(flipped, (truth + 1) % 3, truth)
    fitted = KNNFilter(drop=0.05).fit(x, labels)
    assert np.array_equal(~fitted.keep_, flipped)
    assert fitted.reason_[int(np.argmax(flipped))].endswith("% of neighbours differ")
    assert KNNFilter(k=50).fit(x[:5], labels[:5]).score_.shape == (5,)
    single = KNNFilter().fit(x[:1], labels[:1])
    assert (single.score_.tolist(), single.reason_, single.warnings_) == ([0.0], [""], [])


def test_prototypes_rank_by_the_distance_from_the_nearest_centre() -> None:
    angle = np.radians([0, 2, -2, 20, 90, 92, 88, 60])
    x = np.stack([np.cos(angle), np.sin(angle)], axis=1) * np.array([[1], [2]] * 4)
    labels = np.zeros(8, int)
    hard = PrototypesFilter(drop=0.25, side="hard", clusters=2).fit(x, labels)
    assert np.flatnonzero(~hard.keep_).tolist() == [3, 7]
    easy = PrototypesFilter(drop=0.25, clusters=2).fit(x, labels)
    assert not {3, 7} & set(np.flatnonzero(~easy.keep_).tolist())
    assert easy.cluster_ is not None
    assert len(set(easy.cluster_[:4])) == len(set(easy.cluster_[4:])) == 1


def recorded(likely: np.ndarray, margin: np.ndarray) -> Dynamics:
    """Return the dynamics of samples with these values per epoch, (epochs, n)."""
    dynamics = Dynamics(likely.shape[1])
    for epoch in range(len(likely)):
        seen = np.isfinite(likely[epoch]).astype(float)
        other = np.zeros_like(seen)
        rows = [seen, other, other, other, margin[epoch], likely[epoch]]
        dynamics.end_epoch(epoch, np.stack(rows))
    return dynamics


@pytest.mark.parametrize("epochs", [1, 4, 10, 17])
def test_uncertainty_is_the_papers(epochs: int) -> None:
    """The deviation over windows of ten epochs, averaged; written out plainly here."""
    random = np.random.default_rng(0)
    likely = random.uniform(size=(epochs, 6))
    likely[0, 0] = np.nan  # not seen in the first epoch
    likely[1:, 1] = np.nan  # seen in one epoch
    dynamics = recorded(likely, np.zeros((epochs, 6)))
    seen = np.arange(1 if epochs == 1 else 0, 6)
    values = dynamics._uncertainty(seen)
    for row, value in zip(seen, values, strict=True):
        own = likely[np.isfinite(likely[:, row]), row]
        starts = range(max(1, len(own) - 9))
        wanted = np.mean([own[s : s + 10].std(ddof=1) if len(own) > 1 else np.nan for s in starts])
        assert value == pytest.approx(wanted, abs=1e-6, nan_ok=True)


def test_aum_and_uncertainty_drop_the_right_end_and_keep_the_unseen() -> None:
    margin = np.array([2.0, -3.0, 0.5, np.nan])
    fitted = AUMFilter(drop=0.25).fit(None, [0] * 4, dynamics={"margin": margin})
    assert fitted.keep_.tolist() == [True, False, True, True]
    assert fitted.reason_[1] == "mean margin -3.00"
    easy = AUMFilter(drop=0.25, side="easy").fit(None, [0] * 4, dynamics={"margin": margin})
    assert easy.keep_.tolist() == [False, True, True, True]
    spread = {"uncertainty": np.array([0.3, 0.0, 0.1, np.nan])}
    steady = UncertaintyFilter(drop=0.5).fit(None, [0] * 4, dynamics=spread)
    assert steady.keep_.tolist() == [True, False, False, True]
    with pytest.raises(ThresherError, match='needs the "margin" of a training run'):
        AUMFilter().fit(None, [0], dynamics={"el2n": np.array([1.0])})


def test_el2n_of_a_sample_that_was_pruned_in_the_first_epochs_is_unknown(
    digits: Path, tmp_path: Path
) -> None:
    dynamics = Dynamics(2)
    for epoch in range(11):
        seen = np.array([1.0, float(epoch == 10)])
        dynamics.end_epoch(epoch, np.stack([seen, seen, 0.5 * seen, seen, seen, seen]))
    two, none = np.arange(2), np.empty(0, np.int64)
    split = TrainingSplit(two, np.ones(2, bool), none, none)
    dynamics.write(tmp_path / "dynamics.parquet", Pack.open(digits), split)
    error = pq.read_table(tmp_path / "dynamics.parquet")["el2n"].to_numpy()
    np.testing.assert_array_equal(error, np.array([0.5, np.nan], np.float32))
    easy = EL2NFilter(drop=0.5, side="easy").fit(None, [0, 0], dynamics={"el2n": error})
    assert easy.keep_.tolist() == [False, True]
