"""Every recipe on simulated data: without an effect at most 5 % say "yes", with a large one all do.

A row of a claim such as "A is better than B" is wrong if it says "yes" (or "partly") although all
arms are equal. A row of a claim of equality is wrong if it says "yes" although the arms differ by
the margin.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sequential import happens_too_often
from thresher.recipes import (
    all_recipes,
    cunha_strong,
    dynamic_pruning,
    jitsev_throughput,
    jitsev_validation,
    keuper_io,
    keuper_limits,
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
    ornl_mechanism,
    ornl_pretrained,
    ornl_table1,
)
from thresher.recipes.base import ClaimRow
from thresher.study import power, reading, statistics, survival
from thresher.study.analysis import Analysis, analyse
from thresher.study.results import Trial
from thresher.study.tasks import Values

SD = 0.3
Random = np.random.Generator
Effect = Callable[[Values], tuple[float, float]]
"""Mean and standard deviation of the runs of a cell."""
Simulation = Callable[[Random], list[ClaimRow]]


def _no_effect(cell: Values) -> tuple[float, float]:
    return 90.0, SD


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds that a verdict would need and the second interval take most of the time and decide
    nothing; nor does it take 20,000 permutations to find p-values of 0.01."""
    unknown = property(lambda _: (-math.inf, math.inf))
    monkeypatch.setattr(statistics.Paired, "bootstrap", unknown)
    monkeypatch.setattr(survival, "MOST_SPLITS", 2000)
    monkeypatch.setattr(power, "seeds_needed", lambda *_: None)
    monkeypatch.setattr(power, "seeds_for_equivalence", lambda *_: None)


def _trials(content: Values, random: Random, effect: Effect) -> list[Trial]:
    """Simulate the reported trials of a study, in points rounded to thousandths."""
    axes = {**content["grid"], **({"arm": list(content["arms"])} if "arms" in content else {})}
    axes = {axis: values for axis, values in axes.items() if axis not in content.get("tune", ())}
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    seeds = content["seeds"]
    return [
        Trial(cell=cell, seed=seed, value=round(random.normal(*effect(cell)), 3))
        for cell in cells
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]


def _study(module: Any, effect: Effect = _no_effect) -> Callable[[Random], Analysis]:
    """Return a simulation of a recipe that is a study."""
    more = ("weights.safetensors",) if module is ornl_pretrained else ()
    content = module.definition("smoke", *more)
    definition = reading.from_dict(content)

    def simulate(random: Random) -> Analysis:
        return analyse(_trials(content, random, effect), definition)

    return simulate


def _mechanism(steps: float = 1.0) -> Simulation:
    """`steps` is the factor by which filtered data take more steps to an accuracy."""
    simulate = _study(ornl_mechanism)

    def rows(random: Random) -> list[ClaimRow]:
        metrics = ("steps_to_target", "time_to_target", "top_eigenvalue")
        times: dict[str, list[Trial]] = {metric: [] for metric in metrics}
        for trial in simulate(random).trials:
            needed = float(random.lognormal(5, 0.4))  # a quarter of the runs end before
            needed *= steps if trial.cell["arm"] == "network" else 1.0
            for metric, members in times.items():
                seen = needed < 190 or metric == "top_eigenvalue"
                value = needed if seen else None
                members.append(Trial(cell=trial.cell, seed=trial.seed, value=value, end=190.0))
        return ornl_mechanism.rows(times)

    return rows


def _noisy(effect: Effect = _no_effect) -> Simulation:
    contents = {
        share: noisy_labels.definition("smoke", share, "digits", "oracle.parquet")
        for share in noisy_labels.SHARES["smoke"]
    }
    definitions = {share: reading.from_dict(content) for share, content in contents.items()}

    def rows(random: Random) -> list[ClaimRow]:
        analyses = {
            share: analyse(_trials(content, random, effect), definitions[share])
            for share, content in contents.items()
        }
        return noisy_labels.rows(analyses)

    return rows


def _validation(random: Random, effect: Effect = _no_effect) -> list[ClaimRow]:
    """Luck of a run counts on validation and on test."""
    study = jitsev_validation.STUDIES["smoke"]
    choosing = jitsev_validation.CHOOSING
    trials, scores = {}, {}
    for batch, lr in itertools.product(*study["grid"].values()):
        cell = {"batch_size": batch, "lr": lr}
        lucks = [random.normal(*effect(cell)) for _ in range(study["seeds"])]
        scores[batch, lr] = sum(luck + random.normal(0, SD) for luck in lucks[:choosing])
        trials[batch, lr] = [
            Trial(cell=cell, seed=s, accuracy=luck, reported=False) for s, luck in enumerate(lucks)
        ]
    first, *larger = study["grid"]["batch_size"]
    best = {b: max(study["grid"]["lr"], key=lambda lr: scores[b, lr]) for b in (first, *larger)}
    tuned = [replace(t, reported=True) for b, lr in best.items() for t in trials[b, lr]]
    others = [t for b in larger for t in trials[b, best[first]][choosing:]]
    return jitsev_validation.rows(tuned, others)


def _strong(random: Random, factor: float = 1.0) -> list[ClaimRow]:
    """Weak rules with more images/s and `factor` times the time to the loss; some runs miss it."""
    config = cunha_strong.StrongScalingConfig(workers=(1, 2, 4), seeds=6)
    runs = []
    for workers, rule in itertools.product(config.workers, cunha_strong.RULES):
        for seed in range(config.seeds if workers > 1 or rule == "strong" else 0):
            seconds = float(random.lognormal(2, 0.3)) * (1.0 if rule == "strong" else factor)
            speed = random.normal(100 if rule == "strong" else 200, 5)
            runs.append(
                cunha_strong.ScalingRun(
                    *(workers, rule, seed),
                    reached=seconds < 10 * factor,
                    seconds=min(seconds, 10.0 * factor),
                    steps=10,
                    samples=100,
                    images_per_s=speed,
                    loss=0.0,
                    moved=(1.0, 1.0),
                )
            )
    rows = cunha_strong.rows(runs, config)
    return [row for row in rows if row.claim != "S2"]  # S2 is exact: the weights are equal


def _io(random: Random, slow: float = 0.0) -> list[ClaimRow]:
    """`slow` is by how much small files at random are slower, as a logarithm."""
    containers = ("pack", "folder", "tar", "hdf5")
    keys = [*itertools.product(containers, ("sequential", "random"))]
    means = {key: 9 - slow * (key == ("folder", "random")) for key in keys}
    return keuper_io.rows({k: random.lognormal(mean, 0.1, 3).tolist() for k, mean in means.items()})


@dataclass(frozen=True)
class _Bound:
    measured: float
    hard: float = 32.0
    bound: float = 20.0
    serial: float = 0.05


def _limits(random: Random, less: float = 0.0) -> list[ClaimRow]:
    """Speed-ups at the limit and layers that scale alike, or `less` than that (logarithm)."""
    at_limit = math.log(keuper_limits.LINEAR * 32) - less
    bounds: Any = {
        name: [_Bound(float(random.lognormal(at_limit, 0.1))) for _ in range(3)]
        for name in ("alexnet-small", "googlenet-small")
    }
    skinny = [
        (float(random.lognormal(2 - less, 0.1)), float(random.lognormal(2, 0.1))) for _ in range(3)
    ]
    return keuper_limits.small_batches(bounds, skinny, "a CPU")


def _shares(random: Random, published: bool = False) -> list[ClaimRow]:
    """Shares as published, or the same with all extractors: at least the margin above them."""
    same = max(ornl_table1.PUBLISHED.values()) + ornl_table1.MARGIN_POINTS / 100
    rows = []
    for kind in ornl_table1.MAPS.values():
        noise = {
            model: [
                ornl_table1.MapNoise(value, 0.5, 0.04, 1.0)
                for value in random.normal(*((share, 0.0002) if published else (same, 0.002)), 4)
            ]
            for model, share in ornl_table1.PUBLISHED.items()
        }
        rows += ornl_table1.rows(kind, noise, 0.5)
    return rows


def _throughput(random: Random, efficiency: float = 0.95) -> list[ClaimRow]:
    """Runs of which each worker has a share of the speed of one, at the margin by default."""
    return jitsev_throughput.rows(
        [
            Trial(cell={"arm": k}, seed=seed, workers=k, images_per_s=speed)
            for k, share in ((1, 1.0), (2, efficiency), (4, efficiency))
            for seed, speed in enumerate(share * k * random.lognormal(6, 0.01, 4))
        ]
    )


def _rows_of(module: Any, effect: Effect = _no_effect) -> Simulation:
    simulate = _study(module, effect)
    return lambda random: list(module.rows(simulate(random)))


SIMULATIONS: dict[str, Callable[[], Simulation]] = {
    "mccord-batch": lambda: _rows_of(mccord_batch),
    "mccord-linear": lambda: _rows_of(
        mccord_linear, lambda cell: (90 + 0.3 * (cell["lr_rule"] == "linear"), SD)
    ),
    "mccord-warmup": lambda: _rows_of(mccord_warmup),
    "ornl-fig5": lambda: _rows_of(ornl_fig5),
    "ornl-fig6": lambda: _rows_of(ornl_fig6),
    "ornl-fig7": lambda: _rows_of(ornl_fig7),
    "ornl-fig7-again": lambda: _rows_of(ornl_fig7_again),
    "ornl-fig7-published": lambda: _rows_of(ornl_fig7_published),
    "ornl-mechanism": _mechanism,
    "noisy-labels": _noisy,
    # Pruned runs are worse by the margin; those with as many samples are as good.
    "dynamic-pruning": lambda: _rows_of(
        dynamic_pruning, lambda cell: (90 - 0.3 * (cell["arm"] in dynamic_pruning.PRUNERS), SD)
    ),
    "ornl-future": lambda: _rows_of(ornl_future),
    "ornl-table1": lambda: _shares,
    "jitsev-validation": lambda: _validation,
    "jitsev-throughput": lambda: _throughput,
    # The pretrained extractor is worse by the margin, and equal to random dropping and to none.
    "ornl-pretrained": lambda: _rows_of(
        ornl_pretrained, lambda cell: (90 + 0.3 * (cell["selection"] == "network"), SD)
    ),
    "cunha-strong": lambda: _strong,
    "keuper-io": lambda: _io,
    "keuper-limits": lambda: _limits,
}

WARM_UP = {256: {0: 80, 2: 95, 4: 90}, 480: {0: 70, 2: 85, 4: 90}}
CURVES = {  # by network and rate: the networks are equal at the low rate
    ("tiny", 0.01): {16: 88, 64: 90, 256: 89, 1024: 80},
    ("tiny", 0.1): {16: 88, 64: 90, 256: 89, 1024: 80},
    ("resnet20", 0.01): {16: 88, 64: 90, 256: 89, 1024: 80},
    ("resnet20", 0.1): {16: 70, 64: 75, 256: 85, 1024: 60},  # the deep one falls more
}


def _filtered(cell: Values) -> tuple[float, float]:
    """Filtered data are better at the large batch and, without transformations, worse."""
    large = cell["batch_size"] == 480
    gain = {"network": 10 * large, "random": -10, "network, plain": -20}
    return 80 + gain.get(cell["arm"], 0), 0.08 if large else 0.005


EFFECTS: dict[str, Callable[[], Simulation]] = {
    "dynamic-pruning": lambda: _rows_of(
        dynamic_pruning, lambda c: (90 + c["arm"].endswith(dynamic_pruning.EQUAL), 0.02)
    ),
    "mccord-batch": lambda: _rows_of(mccord_batch, lambda c: (95 - c["batch_size"] / 50, 0.1)),
    "mccord-linear": lambda: _rows_of(mccord_linear, lambda _: (90, 0.03)),
    "mccord-warmup": lambda: _rows_of(
        mccord_warmup, lambda c: (WARM_UP[c["batch_size"]][c["warmup_epochs"]], 0.1)
    ),
    "ornl-fig5": lambda: _rows_of(
        ornl_fig5, lambda c: (CURVES[c["model"], c["lr"]][c["batch_size"]], 0.1)
    ),
    "ornl-fig6": lambda: _rows_of(
        ornl_fig6, lambda c: (90 + 3 * (c["selection"] == "network"), 0.1)
    ),
    "ornl-fig7": lambda: _rows_of(ornl_fig7, _filtered),
    "ornl-fig7-again": lambda: _rows_of(
        ornl_fig7_again, lambda c: (90 + 3 * (c["selection"] == "network"), 0.1)
    ),
    "ornl-fig7-published": lambda: _rows_of(
        ornl_fig7_published, lambda c: (90 + 3 * (c["selection"] == "network"), 0.1)
    ),
    "ornl-mechanism": lambda: _mechanism(steps=0.05),
    "noisy-labels": lambda: _noisy(
        lambda c: (90 + {"full": 0, "random": -3}.get(c["arm"], 3), 0.1)
    ),
    "ornl-future": lambda: _rows_of(
        ornl_future,
        lambda c: (
            {"network": 92, "recursive": 95, "grid": 95}.get(c["selection"], 90),
            0.1,
        ),
    ),
    "ornl-table1": lambda: lambda random: _shares(random, published=True),
    "ornl-pretrained": lambda: _rows_of(
        ornl_pretrained, lambda c: (90 - 3 * (c["selection"] in ("full", "random")), 0.05)
    ),
    "jitsev-throughput": lambda: lambda random: _throughput(random, 1.0),
    "jitsev-validation": lambda: (
        lambda random: _validation(
            random, lambda c: (95 if (c["batch_size"] == 512) == (c["lr"] == 0.3) else 90, 0.1)
        )
    ),
    "cunha-strong": lambda: lambda random: _strong(random, 10.0),
    "keuper-io": lambda: lambda random: _io(random, 3.0),
    "keuper-limits": lambda: lambda random: _limits(random, 2.0),
}
NOT_RANDOM = {"ornl-fig8", "jitsev-records"}
"""Recipes that predict from data sheets: the same numbers every time."""


def _wrong(rows: list[ClaimRow]) -> Iterator[ClaimRow]:
    for row in rows:
        true_equality = "equal within error bars" in row.paper  # the arms are equal
        if row.holds in ("yes", "partly") and not true_equality:
            yield row


def test_every_recipe_is_simulated_or_has_nothing_random() -> None:
    assert {recipe.name for recipe in all_recipes()} == {*SIMULATIONS, *NOT_RANDOM}


@pytest.mark.slow  # many analyses
@pytest.mark.parametrize("name", SIMULATIONS)
def test_without_an_effect_a_recipe_rarely_says_yes(name: str) -> None:
    simulate, random = SIMULATIONS[name](), np.random.default_rng(13)
    assert not happens_too_often(any(_wrong(simulate(random))) for _ in range(1000))


@pytest.mark.parametrize(("share", "expected"), [(0.02, 0), (0.05, 0), (0.1, 1), (0.2, 1)])
def test_a_share_that_is_too_large_is_found(share: float, expected: float) -> None:
    random = np.random.default_rng(13)
    found = [happens_too_often(random.random(1000) < share) for _ in range(300)]
    assert np.mean(found) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("name", EFFECTS)
def test_with_a_large_effect_a_recipe_says_yes(name: str) -> None:
    rows = EFFECTS[name]()(np.random.default_rng(13))
    assert [row.paper for row in rows if row.holds != "yes"] == []


def _never_strong(config: cunha_strong.StrongScalingConfig) -> list[cunha_strong.ScalingRun]:
    """Runs of one and two workers, of which only strong scaling never reaches the loss."""
    return [
        cunha_strong.ScalingRun(
            *(workers, rule, seed),
            reached=rule != "strong",
            seconds=2.0 + seed,
            steps=10,
            samples=100,
            images_per_s=50.0,
            loss=0.0,
            moved=(1.0, 1.0),
        )
        for workers in (1, 2)
        for rule in cunha_strong.RULES[: None if workers > 1 else 1]
        for seed in range(config.seeds)
    ]


def test_a_row_names_the_rule_that_never_reached_the_loss() -> None:
    config = cunha_strong.StrongScalingConfig()
    rows = cunha_strong.rows(_never_strong(config), config)
    assert rows[0].measured == "strong never reached the loss"


def _same_path(runs: list[cunha_strong.ScalingRun]) -> ClaimRow:
    (row,) = (r for r in cunha_strong.rows(runs, cunha_strong.SMOKE) if r.claim == "S2")
    return row


@pytest.mark.parametrize("most_workers", [1, 2])
def test_runs_that_all_diverged_do_not_show_the_same_path(most_workers: int) -> None:
    runs = [
        replace(run, reached=False, loss=None, moved=()) if run.workers <= most_workers else run
        for run in _never_strong(cunha_strong.SMOKE)
    ]
    row = _same_path(runs)
    assert row.holds == "not enough runs"
    assert row.measured == "nothing to compare: the weights are not finite"
    one = [replace(run, loss=0.0, moved=(1.0, 1.0)) if run.seed == 0 else run for run in runs]
    assert _same_path(one).holds == "yes"  # the runs of one seed can be compared


def test_one_run_on_another_path_is_enough_to_say_no() -> None:
    runs = _never_strong(cunha_strong.SMOKE)
    at = next(n for n, run in enumerate(runs) if run.workers == 2 and run.rule == "strong")
    runs[at] = replace(runs[at], moved=(1.0, 1.02))
    row = _same_path(runs)
    assert row.holds == "no"
    assert row.measured.startswith("weights differ by 1.4e-02 of how far they moved")
