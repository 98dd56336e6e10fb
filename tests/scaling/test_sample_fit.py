"""The fit of samples by batch size: on simulated tables, and on published ones.

`mlperf.csv` holds the reference convergence points of MLPerf: epochs (or samples) to the target
accuracy of every run, by batch size, from https://github.com/mlcommons/logging (Apache 2.0),
`mlperf_logging/rcp_checker`. The unit differs by benchmark; neither B_crit nor residuals depend on
it.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from thresher.errors import InvalidValueError
from thresher.scaling.batch_plan import plan_batches
from thresher.scaling.batch_table import BatchRow, read_batch_table
from thresher.scaling.sample_fit import ENOUGH, FORM_ERROR, SampleFit, fit_samples, form_error

BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
MLPERF = Path(__file__).parent / "mlperf.csv"


def simulated(
    critical: float, noise: float = 0.0, repeats: int = 1, seed: int = 0, least: float = 1e6
) -> list[BatchRow]:
    """Rows of the law itself, with log-normal noise."""
    generator = np.random.default_rng(seed)
    return [
        BatchRow(batch, least * (1 + batch / critical) * math.exp(noise * generator.normal()))
        for batch in BATCHES
        for _ in range(repeats)
    ]


@pytest.mark.parametrize("critical", [20.0, 281.0, 1050.0, 30_000.0])
def test_the_parameters_of_an_exact_table_come_out(critical: float) -> None:
    fit = fit_samples(simulated(critical))
    assert fit.b_crit == pytest.approx(critical, rel=1e-6)
    assert fit.e_min == pytest.approx(1e6, rel=1e-6)
    assert fit.s_min == pytest.approx(fit.e_min / fit.b_crit)
    assert max(map(abs, fit.residuals)) < 1e-6
    assert fit.fits
    assert fit.samples_at(100) == pytest.approx(1e6 * (1 + 100 / critical), rel=1e-6)


def test_the_fit_minimises_the_weighted_squares() -> None:
    rows = simulated(300, noise=0.1, seed=3)
    fit = fit_samples(rows)

    def squares(least: float, critical: float) -> float:
        return sum(math.log(r.samples / (least * (1 + r.batch / critical))) ** 2 for r in rows)

    best = squares(fit.e_min, fit.b_crit)
    for change in (0.99, 1.01):
        assert squares(fit.e_min * change, fit.b_crit) > best
        assert squares(fit.e_min, fit.b_crit * change) > best


@pytest.mark.slow  # fits 200 tables
@pytest.mark.parametrize(("repeats", "noise"), [(1, 0.1), (3, 0.15)])
def test_the_interval_covers_the_truth_as_often_as_it_says(repeats: int, noise: float) -> None:
    covered = 0
    for seed in range(100):
        fit = fit_samples(simulated(300, noise, repeats, seed))
        low, high = fit.b_crit_low or 0.0, fit.b_crit_high or math.inf
        covered += low <= 300 <= high
    # 95 of 100, with a margin of three standard errors.
    assert 88 <= covered <= 100


def test_the_bootstrap_is_seeded() -> None:
    rows = simulated(300, 0.1)
    assert fit_samples(rows, seed=1) == fit_samples(rows, seed=1)
    assert fit_samples(rows, seed=1).b_crit_low != fit_samples(rows, seed=2).b_crit_low


def test_more_noise_gives_a_wider_interval() -> None:
    def width(noise: float) -> float:
        fit = fit_samples(simulated(300, noise, 3))
        return math.log((fit.b_crit_high or math.inf) / (fit.b_crit_low or 1e-9))

    assert width(0.02) < width(0.1) < width(0.3)


def test_a_row_of_many_runs_has_more_weight() -> None:
    rows = [BatchRow(16, 900.0), BatchRow(64, 1500.0), BatchRow(256, 3000.0)]
    weighted = [rows[0], BatchRow(64, 1500.0, runs=25), rows[2]]
    assert abs(fit_samples(weighted).residuals[1]) < 0.3 * abs(fit_samples(rows).residuals[1])


def test_two_points_are_solved_and_warned_about() -> None:
    fit = fit_samples([BatchRow(16, 1000.0), BatchRow(128, 2000.0)])
    assert fit.method == "two points"
    assert fit.b_crit == pytest.approx(96)
    assert fit.samples_at(128) == pytest.approx(2000)
    assert (fit.b_crit_low, fit.b_crit_high) == (None, None)
    assert "two batch sizes" in fit.warnings[0]


def test_two_points_without_a_solution_give_bounds_not_negative_numbers() -> None:
    falling = fit_samples([BatchRow(16, 2000.0), BatchRow(128, 1000.0)])
    steep = fit_samples([BatchRow(16, 1000.0), BatchRow(128, 9000.0)])
    assert falling.b_crit > 128
    assert 0 < steep.b_crit < 16
    assert any("do not grow" in text for text in falling.warnings)
    assert any("grow in proportion" in text for text in steep.warnings)


def test_two_batches_with_repeats_have_an_interval() -> None:
    rows = [BatchRow(16, s) for s in (990.0, 1010.0, 1000.0)]
    rows += [BatchRow(128, s) for s in (1990.0, 2020.0, 1980.0)]
    fit = fit_samples(rows)
    assert fit.b_crit_low is not None
    assert fit.b_crit_high is not None
    assert fit.b_crit_low < fit.b_crit < fit.b_crit_high


def test_a_table_of_another_form_is_said_not_to_fit() -> None:
    hump = dict(zip(BATCHES, (1.0, 1.17, 1.67, 2.17, 3.67, 2.67, 3.83), strict=True))
    fit = fit_samples([BatchRow(batch, 1e5 * factor) for batch, factor in hump.items()])
    assert not fit.fits
    assert any("does not fit" in text and "512" in text for text in fit.warnings)


def test_scatter_alone_is_not_a_misfit() -> None:
    fits = [fit_samples(simulated(300, 0.2, 3, seed)).fits for seed in range(20)]
    assert sum(fits) >= 16


# ---- few batch sizes --------------------------------------------------------------------------

PILOTS = (32, 128, 512)


def drawn(batches: Sequence[int], form: float, noise: float, seed: int) -> list[BatchRow]:
    """Three runs of each batch size, which the form with B_crit 500 misses by `form`."""
    generator = np.random.default_rng(seed)
    missed = form * generator.standard_normal(len(batches))
    return [
        BatchRow(batch, 1e6 * (1 + batch / 500) * math.exp(error + noise * generator.normal()))
        for batch, error in zip(batches, missed, strict=True)
        for _ in range(3)
    ]


def form_alone(batches: Sequence[int], critical: float) -> float:
    """Standard error of log B_crit if the form misses each batch by `FORM_ERROR`, linearised."""
    slope = np.array([batch / (batch + critical) for batch in batches])
    return FORM_ERROR / math.sqrt(((slope - slope.mean()) ** 2).sum())


@pytest.mark.parametrize("batches", [(32, 512), PILOTS, (32, 128, 512, 2048)])
def test_few_batches_that_hardly_scatter_are_as_uncertain_as_the_form(
    batches: tuple[int, ...],
) -> None:
    fit = fit_samples(drawn(batches, form=0, noise=0.001, seed=0))
    assert fit.b_crit_low is not None
    assert fit.b_crit_high is not None
    least = 2 * 1.96 * form_alone(batches, 500)
    assert 0.9 * least < math.log(fit.b_crit_high / fit.b_crit_low) < 1.3 * least
    # Predictions are as uncertain: E_min and B_crit are drawn together.
    samples = [e * (1 + 512 / b) for e, b in fit.draws]
    assert 0.5 * FORM_ERROR < np.std(np.log(samples)) < 1.2 * FORM_ERROR


def test_few_batches_without_repeats_are_as_uncertain_as_the_form() -> None:
    fit = fit_samples([BatchRow(batch, 1e6 * (1 + batch / 500)) for batch in PILOTS])
    assert fit.b_crit_low is not None
    assert fit.b_crit_high is not None
    least = 2 * 1.96 * form_alone(PILOTS, 500)
    assert math.log(fit.b_crit_high / fit.b_crit_low) > 0.9 * least


@pytest.mark.slow
def test_intervals_of_three_batches_cover_the_truth_and_have_bounds() -> None:
    covered = bounded = 0
    for seed in range(40):
        fit = fit_samples(drawn(PILOTS, form=FORM_ERROR, noise=0.09, seed=seed))
        low, high = fit.b_crit_low or 0.0, fit.b_crit_high or math.inf
        covered += low <= 500 <= high
        bounded += 0 < low < high < math.inf
    assert covered >= 35
    assert bounded >= 32


def test_the_error_of_the_form_is_that_of_stored_tables() -> None:
    results = Path(__file__).parents[2] / "benchmarks/results"
    errors = []
    for path in (MLPERF, *results.glob("plan_check*.csv")):
        rows = read_batch_table(path)
        for target in {row.target for row in rows}:
            table = [row for row in rows if row.target == target]
            assert len({row.batch for row in table}) >= ENOUGH
            errors.append(form_error(table))
    assert math.sqrt(np.mean(np.square(errors))) == pytest.approx(FORM_ERROR, abs=0.01)


# ---- published tables -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> dict[str, SampleFit]:
    rows = read_batch_table(MLPERF)
    names = dict.fromkeys(row.target for row in rows)
    return {name: fit_samples([r for r in rows if r.target == name]) for name in names}


@pytest.mark.parametrize("name", ["RNN-T", "R-GAT", "Llama 3.1 8B", "Llama 3.1 405B", "DLRM-DCNv2"])
def test_published_tables_are_fitted_to_five_percent(
    published: dict[str, SampleFit], name: str
) -> None:
    fit = published[name]
    assert fit.fits
    assert max(map(abs, fit.residuals)) <= 0.05
    assert fit.b_crit_low is not None
    assert fit.b_crit_high is not None
    assert fit.b_crit_low < fit.b_crit < fit.b_crit_high


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("R-GAT", 106_172, 128_408), ("Llama 3.1 405B", 5_475, 6_455), ("BERT", 10_048, 15_976)],
)
def test_tables_of_many_batches_estimate_the_error_of_the_form_themselves(
    published: dict[str, SampleFit], name: str, low: float, high: float
) -> None:
    """The intervals are those from before `FORM_ERROR`, which is larger than the errors here."""
    fit = published[name]
    assert (fit.b_crit_low, fit.b_crit_high) == pytest.approx((low, high), rel=1e-3)


def test_the_published_table_of_resnet_is_fitted_to_seven_percent(
    published: dict[str, SampleFit],
) -> None:
    """The tables of ResNet-50 were made with two optimizers, SGD and LARS."""
    residuals = published["ResNet-50"].residuals
    assert max(map(abs, residuals)) <= 0.07
    assert math.sqrt(np.mean(np.square(residuals))) <= 0.04


@pytest.mark.parametrize("name", ["RetinaNet", "CosmoFlow", "BERT"])
def test_published_tables_of_another_form_are_said_not_to_fit(
    published: dict[str, SampleFit], name: str
) -> None:
    assert not published[name].fits


# ---- planning from a table --------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_recommended_batch_costs_a_quarter_more(tmp_path: Path) -> None:
    lines = [f"{row.batch},{row.samples},0.1" for row in simulated(520.0)]
    table = write(tmp_path / "t.csv", "\n".join(["batch,samples,lr", *lines]))
    plan = plan_batches(table)
    assert plan.recommended.batch_size == 128
    assert plan.recommended.samples == pytest.approx(1.25e6, rel=0.01)
    assert plan.recommended.lr == pytest.approx(0.1)
    assert [row.batch_size for row in plan.rows] == list(BATCHES)
    assert all(row.measured == pytest.approx(row.samples) for row in plan.rows)


def test_rows_decide_where_the_form_does_not_fit() -> None:
    """A sweep of CIFAR-10 at rates that were not tuned, by version 0.1.

    The fit alone would recommend 128, at 1.7 times the samples.
    """
    plan = plan_batches(Path(__file__).with_name("cifar10_sweep.csv"))
    assert not plan.fit.fits
    assert 900 < plan.fit.b_crit < 1150
    assert plan.recommended.batch_size == 64
    assert "the form does not fit" in plan.reason
    assert plan.sample_model(50_000).largest == 64


def test_batches_beyond_the_table_are_not_recommended(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "batch,samples\n8,1000\n16,1001\n64,1002\n")
    assert plan_batches(table).recommended.batch_size == 64


def test_the_target_that_needs_most_samples_is_planned_for(tmp_path: Path) -> None:
    text = "batch,steps,target\n8,100,0.7\n32,40,0.7\n8,300,.80\n32,200,0.8\n"
    table = write(tmp_path / "t.csv", text)
    plan = plan_batches(table)
    assert plan.fit.target == "0.8"
    assert [fit.target for fit in plan.targets] == ["0.7", "0.8"]
    assert plan_batches(table, target=0.7).fit.target == "0.7"
    with pytest.raises(InvalidValueError, match=r"0\.9 is not a target of .*; it has 0\.7, 0\.8"):
        plan_batches(table, target=0.9)
