"""Filters on classes of a few samples."""

import numpy as np

from thresher.select.filters.base import group_counts
from thresher.select.filters.grid import GridFilter
from thresher.select.filters.label_errors import LabelErrorsFilter
from thresher.select.filters.moderate import ModerateFilter
from thresher.select.filters.network import NetworkFilter
from thresher.select.filters.random import RandomFilter


def test_a_class_of_two_does_not_change_the_folds() -> None:
    """The folds were as many as the samples of the smallest class, whatever was asked for."""
    labels = np.array([0] * 40 + [1] * 40 + [2] * 2)
    features = np.random.default_rng(0).normal(size=(82, 4))
    probe = LabelErrorsFilter(folds=5)._probe(features, labels)
    assert len(probe.weights) == 5
    assert probe.fold[-2] != probe.fold[-1], "each is judged by a regression that saw the other"
    assert (
        len(LabelErrorsFilter(folds=5)._probe(features[:6], labels[[0, 0, 0, 40, 40, 40]]).weights)
        == 3
    )


def test_hdbscan_mentions_classes_that_it_keeps_whole() -> None:
    labels = np.array([0] * 40 + [1] * 8)
    features = np.random.default_rng(0).normal(size=(48, 4))
    found = NetworkFilter(cluster="hdbscan", reduce="pca", min_cluster_size=10)
    found.fit(features, labels)
    assert "class 1 has fewer than 10 samples and is kept whole" in found.warnings_
    assert found.reason_[-1] == "class kept whole: too few samples"


def test_the_share_of_small_classes_is_the_share_of_all() -> None:
    """5 % of a class of nine was rounded to nothing, so that nothing at all was dropped."""
    labels = np.repeat(np.arange(100), 9)
    fitted = RandomFilter(drop=0.05, per_class=True).fit(None, labels)
    per_class = np.bincount(labels[~fitted.keep_], minlength=100)
    assert per_class.sum() == 45
    assert per_class.max() == 1
    assert np.flatnonzero(per_class)[-1] > 60, "which classes is drawn, too"
    features = np.random.default_rng(0).normal(size=(900, 8))
    moderate = ModerateFilter(drop=0.05).fit(features, labels)
    assert (~moderate.keep_).sum() == 45
    sizes = np.array([1, 1, 30, 33, 100])
    for share in (0.0, 0.05, 0.29, 0.5, 0.95):
        counts = group_counts(sizes, share)
        assert counts.sum() == round(share * 165)
        assert (np.abs(counts - share * sizes) <= 1).all()
        assert (counts < sizes).all(), "no class is used up"


def test_a_share_that_small_classes_cannot_give_is_mentioned() -> None:
    """Of 40 classes of two, each keeps one: 40 of the 48 samples of 60 % go."""
    labels = np.repeat(np.arange(40), 2)
    features = np.random.default_rng(0).normal(size=(80, 4))
    warning = "drop 0.6 means 48 samples, but only 40 could be dropped"
    for fitted in (
        RandomFilter(drop=0.6, per_class=True).fit(None, labels),
        GridFilter(drop=0.6, perplexity=5, iterations=250).fit(features, labels),
    ):
        assert (~fitted.keep_).sum() == 40
        assert fitted.warnings_ == [warning]
    assert RandomFilter(drop=0.5, per_class=True).fit(None, labels).warnings_ == []
