"""Votes: how far choices agree, and when to distrust them."""

from typing import Any

import numpy as np
import pytest
from planted_classes import planted

from thresher.errors import ThresherError
from thresher.select.filters.network import NetworkFilter
from thresher.select.stability import stability


def test_jaccard_by_hand() -> None:
    drops = np.zeros((2, 10), bool)
    drops[0, :4] = True
    drops[1, 2:6] = True
    found = stability(drops)
    assert found.jaccard == pytest.approx(2 / 6)
    assert found.expected == pytest.approx(0.16 / 0.64)
    np.testing.assert_array_equal(found.votes[:6], [0.5, 0.5, 1, 1, 0.5, 0.5])


def test_random_choices_are_called_noise_and_equal_ones_are_not() -> None:
    random = np.random.default_rng(0)
    found = stability(random.random((5, 20_000)) < 0.05)
    assert found.jaccard == pytest.approx(found.expected, abs=0.01)
    assert found.noisy
    same = stability(np.repeat(random.random((1, 500)) < 0.05, 3, axis=0))
    assert same.jaccard == same.agreement == 1
    assert not same.noisy
    with pytest.raises(ThresherError, match="two or more choices"):
        stability(np.zeros((1, 5), bool))


@pytest.mark.slow
def test_votes_of_maps_meet_the_share_and_find_what_was_planted() -> None:
    samples, flipped, _ = planted()
    found = NetworkFilter(drop=0.1, votes=3, iterations=150, device="cpu").fit_inputs(samples)
    assert (~found.keep_).sum() == 60
    assert flipped[~found.keep_].mean() > 0.4
    assert found.votes_ is not None
    assert found.votes_[~found.keep_].min() >= found.votes_[found.keep_].max()
    report = found.report_["stability"]
    assert report["votes"] == 3
    assert not report["noisy"]
    assert 0 < report["jaccard"] < 1, "maps from different starts differ"
    assert [one["seed"] for one in found.report_["by_vote"]] == [0, 1, 2]


def test_a_filter_on_noise_warns() -> None:
    samples, _, _ = planted()
    random = np.random.default_rng(5)
    unrelated = [random.normal(size=(600, 8)).astype(np.float32) for _ in range(2)]
    network = NetworkFilter(drop=0.05, reduce="pca", components=2)
    found = network.fit(samples.features, samples.labels, other_features=unrelated)
    assert found.report_["networks"] == 3
    assert any("mostly noise" in warning for warning in found.warnings_)


@pytest.mark.slow
def test_perplexities_vote_and_one_alone_cannot() -> None:
    samples, _, _ = planted()
    some = samples.take(np.arange(0, 600, 3))
    options = {"perplexities": (5.0, 20.0), "iterations": 100, "device": "cpu"}
    both = NetworkFilter(drop=0.1, **options).fit_inputs(some)  # type: ignore[arg-type]
    assert [one["perplexity"] for one in both.report_["by_vote"]] == [5.0, 20.0]
    with pytest.raises(ThresherError, match="a single map cannot vote; give `votes`"):
        NetworkFilter(drop=0.1, reduce="pca", perplexities=(5.0,)).fit_inputs(some)


def test_half_a_sample_from_the_share_is_no_warning() -> None:
    """5 % of 390 samples are 19.5: no eps could drop 5.00 %."""
    x, labels = np.random.default_rng(0).normal(size=(390, 6)), np.arange(390) % 4
    found = NetworkFilter(drop=0.05, reduce="pca").fit(x, labels)
    assert (~found.keep_).sum() in (19, 20)
    assert not found.warnings_


def test_a_vote_that_meets_the_share_does_not_say_otherwise() -> None:
    x, labels = np.random.default_rng(0).normal(size=(203, 6)), np.arange(203) % 5
    one = NetworkFilter(drop=0.99, reduce="pca").fit(x, labels)
    assert one.warnings_[0].startswith("no eps drops 99.00 %")
    found = NetworkFilter(drop=0.99, reduce="pca").fit(x, labels, other_features=[x])
    assert (~found.keep_).sum() == 201
    assert not any("eps" in warning for warning in found.warnings_)


@pytest.mark.parametrize("options", [{"votes": 2}, {"perplexities": (5.0, 20.0)}])
@pytest.mark.parametrize("reduce", ["pca", "none"])
def test_votes_that_cannot_differ_are_refused(reduce: Any, options: dict[str, Any]) -> None:
    """They agreed with a Jaccard overlap of 1, which said nothing about the filter."""
    x, labels = np.random.default_rng(0).normal(size=(40, 6)), np.arange(40) % 2
    with pytest.raises(ThresherError, match=f"with `reduce` {reduce} all votes of a network are"):
        NetworkFilter(drop=0.1, reduce=reduce, **options).fit(x, labels)
