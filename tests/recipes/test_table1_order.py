"""Table I: the order of the extractors by the share that they drop."""

import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from thresher.recipes import ornl_table1
from thresher.recipes.base import ClaimRow


def _order_row(shares: dict[str, float], spread: float) -> ClaimRow:
    """Return the row of table I about the order, of four seeds with these shares on average."""
    random = np.random.default_rng(0)
    noise = {
        model: [
            ornl_table1.MapNoise(value, 0.5, 0.04, 1.0) for value in random.normal(share, spread, 4)
        ]
        for model, share in shares.items()
    }
    rows = ornl_table1.rows(ornl_table1.MAPS["network"], noise, 1.0)
    (row,) = (row for row in rows if "from least to most" in row.paper)
    return row


def test_the_order_of_extractors() -> None:
    published = ornl_table1.PUBLISHED
    row = _order_row(published, 0.0001)
    assert (row.holds, row.values["tau"]) == ("yes", pytest.approx([1, 1, 1, 1]))
    assert row.values["p_permutation"] == 1 / 120
    assert "10 are in the paper's order and 0 are not" in row.note
    row = _order_row({model: 0.1 - share for model, share in published.items()}, 0.0001)
    assert (row.holds, row.values["tau"]) == ("no", pytest.approx([-1, -1, -1, -1]))
    assert row.values["p_permutation"] == 1
    # One pair is the other way round: resnet18 and resnet34.
    swapped = {**published, "resnet18": published["resnet34"], "resnet34": published["resnet18"]}
    row = _order_row(swapped, 0.0001)
    assert (row.holds, row.values["tau"]) == ("no", pytest.approx([0.8, 0.8, 0.8, 0.8]))
    assert "9 are in the paper's order and 1 are not" in row.note
    assert row.values["p_permutation"] == 5 / 120
    half = {model: share / 2 for model, share in published.items()}
    assert _order_row(half, 0.0001).holds == "yes"  # smaller differences, but the same order
    alike = dict.fromkeys(published, 0.05)
    row = _order_row(alike, 0.002)
    assert row.holds == "no"  # resnet152 does not drop four points less than the next
    assert "0 are in the paper's order" in row.note
    assert _order_row(published, 0.01).holds == "not enough runs"


def test_extractors_of_large_spread_do_not_hide_the_share_of_another() -> None:
    shares = {
        "resnet50": [4.11, 4.75, 4.77, 4.89],
        "resnet101": [5.21, 6.0, 6.42, 13.61],
        "resnet152": [4.48, 5.0, 5.48, 7.16],
    }
    noise = {
        model: [ornl_table1.MapNoise(value / 100, 0.5, 0.04, 1.0) for value in each]
        for model, each in shares.items()
    }
    rows = ornl_table1.rows(ornl_table1.MAPS["network"], noise, 1.5)
    assert [row.holds for row in rows[:2]] == ["no", "not enough runs"]
    assert rows[0].values["shares"] == pytest.approx(shares["resnet50"])


def test_tau_is_that_of_scipy() -> None:
    published, shares = (
        list(ornl_table1.PUBLISHED.values()),
        np.random.default_rng(1).random((5, 4)),
    )
    taus, chance = ornl_table1.kendall(published, shares)
    expected = [kendalltau(published, column).statistic for column in shares.T]
    np.testing.assert_allclose(taus, expected)
    means = [
        np.mean([kendalltau(order, column).statistic for column in shares.T])
        for order in itertools.permutations(published)
    ]
    assert chance == np.mean(np.array(means) >= np.mean(expected) - 1e-9)
