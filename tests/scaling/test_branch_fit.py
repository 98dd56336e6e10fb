"""The critical batch from branches, where it is known: simulated losses, and a noisy quadratic."""

import math

import numpy as np
import pytest

from thresher.errors import InvalidValueError
from thresher.scaling.branch_fit import LossCurve, fit_branches, loss_slopes

BATCHES = (4, 8, 16, 32)


def _simulated(critical: float, noise: float, seed: int) -> dict[int, LossCurve]:
    """Losses that fall by exp(−k·s) with k = k_0/(1 + B/B_crit); a sample's log loss scatters."""
    random = np.random.default_rng(seed)
    start, length = random.uniform(0.5, 2), 2000
    return {
        batch: [
            (
                float(seen),
                start
                * math.exp(-0.001 / (1 + batch / critical) * seen)
                * math.exp(noise / math.sqrt(batch) * random.standard_normal()),
            )
            for seen in range(0, length, batch)
        ]
        for batch in BATCHES
    }


@pytest.mark.parametrize("critical", [6.0, 20.0, 100.0])
def test_without_noise_the_critical_batch_comes_out_exactly(critical: float) -> None:
    fit = fit_branches([_simulated(critical, 0.0, seed) for seed in range(2)])
    assert fit.critical_batch == pytest.approx(critical, rel=0.03)  # the step of the grid
    ratio = (1 + 4 / critical) / (1 + 32 / critical)
    assert fit.progress[32] == pytest.approx(ratio, rel=1e-6)
    within = [b for b in BATCHES if (1 + b / critical) / (1 + 4 / critical) <= 1.25]
    assert fit.within_tolerance == within[-1]


@pytest.mark.slow
def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    covered = 0
    for number in range(60):
        runs = [_simulated(20.0, 1.0, 10 * number + n) for n in range(3)]
        fit = fit_branches(runs)
        covered += (fit.low or 0) <= 20 <= (fit.high or math.inf)
    assert covered >= 51  # 57 expected


def _quadratic_run(seed: int, dimensions: int = 30) -> dict[int, LossCurve]:
    """SGD from 0 on least squares with isotropic inputs in d dimensions, y = w·x.

    A step at rate ε on B samples multiplies the expected loss by 1 − 2ε + ε²(1 + (d + 1)/B). At a
    tenth of the best rate, ε = 0.1·B/(B + d + 1), it falls by 0.19/(B + d + 1) per sample, so that
    B_crit is d + 1.
    """
    random = np.random.default_rng(seed)
    truth = random.standard_normal(dimensions)
    inputs = random.standard_normal((640, dimensions))
    curves: dict[int, LossCurve] = {}
    for batch in BATCHES:
        weights, curve = np.zeros(dimensions), []
        for begin in range(0, len(inputs), batch):
            x = inputs[begin : begin + batch]
            error = x @ (weights - truth)
            # The expected loss of these weights, known for isotropic inputs.
            curve.append((float(begin), float(((weights - truth) ** 2).sum()) / 2))
            weights = weights - 0.1 / (batch + dimensions + 1) * (x.T @ error)
        curves[batch] = curve
    return curves


def test_on_a_problem_with_a_known_answer_it_is_found() -> None:
    fit = fit_branches([_quadratic_run(seed) for seed in range(8)])
    assert fit.low is not None
    assert fit.high is not None
    assert fit.critical_batch == pytest.approx(31, rel=0.15)
    assert fit.low <= fit.critical_batch <= fit.high


def test_batches_that_cost_nothing_have_no_upper_bound() -> None:
    fit = fit_branches([_simulated(1e9, 0.3, seed) for seed in range(3)])
    assert fit.high is None
    assert fit.within_tolerance == 32


def test_a_branch_that_makes_no_progress_is_beyond_the_tolerance() -> None:
    runs = [_simulated(20.0, 0.1, seed) for seed in range(2)]
    for curves in runs:
        curves[32] = [(seen, 2.0) for seen, _ in curves[32]]
    fit = fit_branches(runs)
    assert fit.within_tolerance < 32
    assert fit.critical_batch < 20


def test_slopes_share_the_start() -> None:
    curves = [[(0.0, 2.0), (100.0, 1.0)], [(0.0, 2.0), (100.0, 0.5)]]
    assert loss_slopes(curves) == pytest.approx([math.log(2) / 100, math.log(4) / 100])


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="two batch sizes or more, got 1"):
        fit_branches([{4: [(0.0, 1.0)]}])
    with pytest.raises(InvalidValueError, match="the loss does not fall in the branches at batch"):
        fit_branches([{4: [(0.0, 1.0), (9.0, 2.0)], 8: [(0.0, 1.0), (9.0, 1.0)]}])
