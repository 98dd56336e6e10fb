"""Pruning while training: expected gradients, annealing, and going on after a checkpoint."""

import json
from pathlib import Path

import numpy as np
import pytest

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.errors import ThresherError
from thresher.paths import write_json
from thresher.training.config import TrainConfig
from thresher.training.epochs import EpochPlanner, EpochSamples, Progress
from thresher.training.pruners import DynamicPruner, DynamicRandom, InfoBatch, make_pruner
from thresher.training.resolved import resolve
from thresher.training.split import TrainingSplit
from thresher.training.train import train

pytest_plugins = ["train_data"]

POSITIONS = np.arange(10, 4010)


def test_infobatch_keeps_the_expected_gradient() -> None:
    pruner = InfoBatch(ratio=0.5)
    protocol: DynamicPruner = pruner
    protocol.begin(POSITIONS, epochs=16, seed=1, batch_size=1)
    keep, weight = pruner.choose(0)
    assert keep.all(), "nothing has been seen yet"
    assert (weight == 1).all()
    losses = np.random.default_rng(0).gamma(2, 1, len(POSITIONS)).astype(np.float32)
    for part in np.array_split(np.random.default_rng(1).permutation(len(POSITIONS)), 7):
        pruner.observe(POSITIONS[part], losses[part])
    easy = losses < losses.mean()
    totals = []
    for epoch in range(1, 14):
        keep, weight = pruner.choose(epoch)
        assert keep[~easy].all()
        assert (weight[~easy] == 1).all()
        np.testing.assert_allclose(weight[easy], 1 / keep[easy].mean(), rtol=1e-6)
        assert 0.45 < keep[easy].mean() < 0.55
        totals.append((losses * weight)[keep].sum())
    assert np.mean(totals) == pytest.approx(losses.sum(), rel=0.01)
    keep, weight = pruner.choose(14)
    assert keep.all(), "the last eighth trains on everything"
    assert (weight == 1).all()


@pytest.mark.parametrize(("epochs", "prunes"), [(1, False), (2, False), (3, True)])
def test_infobatch_says_when_it_prunes_nothing(
    epochs: int, prunes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pruner = InfoBatch()
    pruner.begin(POSITIONS, epochs=epochs, seed=1, batch_size=1)
    kept = []
    for epoch in range(epochs):
        kept.append(pruner.choose(epoch)[0].all())
        pruner.observe(POSITIONS, np.linspace(0, 1, len(POSITIONS)))
    assert all(kept) != prunes
    assert (f"InfoBatch prunes nothing in {epochs} epoch" in caplog.text) != prunes
    caplog.clear()
    DynamicRandom().begin(POSITIONS, epochs=epochs, seed=1)
    assert not caplog.text


@pytest.mark.parametrize(("ratio", "easy"), [(0.6, 1), (0.9, 4), (0.99, 50)])
def test_infobatch_keeps_an_easy_sample(ratio: float, easy: int) -> None:
    pruner = InfoBatch(ratio=ratio)
    pruner.begin(POSITIONS[:60], epochs=8, seed=0, batch_size=1)
    losses = np.where(np.arange(60) < easy, 0.1, 9.0)
    pruner.observe(POSITIONS[:60], losses)
    keep, weight = pruner.choose(1)
    assert keep[:easy].sum() == 1
    assert (losses * weight)[keep].sum() == pytest.approx(losses.sum())


def test_choices_differ_by_epoch_and_seed_and_repeat() -> None:
    for make in (InfoBatch, DynamicRandom):
        chosen: dict[tuple[int, int], np.ndarray] = {}
        for seed, epoch in ((0, 1), (0, 2), (1, 1), (0, 1)):
            pruner = make()
            pruner.begin(POSITIONS, 20, seed)
            pruner.observe(POSITIONS, np.arange(len(POSITIONS), dtype=np.float32))
            mask = pruner.choose(epoch)[0]
            if (seed, epoch) in chosen:
                np.testing.assert_array_equal(mask, chosen[seed, epoch])
            chosen[seed, epoch] = mask
        assert not np.array_equal(chosen[0, 1], chosen[0, 2])
        assert not np.array_equal(chosen[0, 1], chosen[1, 1])


def test_dynamic_random_drops_its_share_unweighted() -> None:
    pruner = DynamicRandom(ratio=0.25)
    pruner.begin(POSITIONS, 8, 0)
    keep, weight = pruner.choose(0)
    assert (~keep).sum() == 1000
    assert (weight == 1).all()
    assert pruner.choose(7)[0].all()


@pytest.mark.parametrize("make", [InfoBatch, DynamicRandom])
@pytest.mark.parametrize(
    ("epochs", "full"),
    [(1, 0), (2, 1), (3, 1), (4, 1), (7, 1), (8, 1), (15, 1), (16, 2), (30, 3), (100, 12)],
)
def test_the_last_epochs_train_on_everything(
    make: type[InfoBatch] | type[DynamicRandom], epochs: int, full: int
) -> None:
    """An eighth, rounded down, but at least one of several epochs."""
    pruner = make(ratio=0.5)
    pruner.begin(POSITIONS, epochs, 0)
    pruner.observe(POSITIONS, np.arange(len(POSITIONS), dtype=np.float32))
    everything = [bool(pruner.choose(epoch)[0].all()) for epoch in range(epochs)]
    assert everything == [False] * (epochs - full) + [True] * full
    never = make(ratio=0.5, annealed=0.0)
    never.begin(POSITIONS, epochs, 0)
    never.observe(POSITIONS, np.arange(len(POSITIONS), dtype=np.float32))
    assert not never.choose(epochs - 1)[0].all()


def test_the_share_of_full_epochs_is_not_rounded_down() -> None:
    """Seven tenths of ten epochs are seven, but 10·(1 - 0.7) is a little more than 3."""
    pruner = DynamicRandom(ratio=0.5, annealed=0.7)
    pruner.begin(POSITIONS, 10, 0)
    assert [bool(pruner.choose(epoch)[0].all()) for epoch in (2, 3)] == [False, True]


def test_a_checkpoint_restores_the_choice() -> None:
    first = InfoBatch()
    first.begin(POSITIONS, 10, 3)
    first.observe(POSITIONS[:2000], np.linspace(0, 4, 2000, dtype=np.float32))
    second = InfoBatch()
    second.begin(POSITIONS, 10, 3)
    second.restore(first.state())
    for a, b in zip(first.choose(4), second.choose(4), strict=True):
        np.testing.assert_array_equal(a, b)
    other = InfoBatch()
    other.begin(POSITIONS[:5], 10, 3)
    with pytest.raises(ThresherError, match="other samples"):
        other.restore(first.state())


@pytest.mark.parametrize("name", ["infobatch:0.5", "random:0.3"])
@pytest.mark.parametrize("batch", [7, 512, 3000])
def test_an_epoch_is_a_whole_number_of_batches(name: str, batch: int) -> None:
    """Or everything, if that is less than a batch more; the expected gradient stays."""
    pruner = make_pruner(name)
    assert pruner is not None
    pruner.begin(POSITIONS, 16, 1, batch)
    losses = np.random.default_rng(0).gamma(2, 1, len(POSITIONS)).astype(np.float32)
    pruner.observe(POSITIONS, losses)
    wanted = len(POSITIONS) * (1 - pruner.ratio * (losses < losses.mean()).mean())  # type: ignore
    if name.startswith("random"):
        wanted = len(POSITIONS) * 0.7
    total = 0
    for epoch in range(10):
        keep, weight = pruner.choose(epoch)
        count = keep.sum()
        total += count
        assert count % batch == 0 or keep.all()
        if name.startswith("infobatch"):
            assert wanted - 1 < count < wanted + batch
            assert weight[keep].sum() == pytest.approx(len(POSITIONS), rel=1e-4)
        elif batch < len(POSITIONS) / 2:
            assert wanted * (epoch + 1) - 1 < total < wanted * (epoch + 1) + batch


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("infobach", 'unknown pruner "infobach"; did you mean "infobatch"'),
        ("random:1", r"ratio of random must be in \[0, 1\)"),
        ("random:nan", "ratio of random"),
        ("infobatch:", "ratio of infobatch"),
    ],
)
def test_a_wrong_pruner_is_refused(name: str, message: str) -> None:
    with pytest.raises(ThresherError, match=message):
        make_pruner(name)


def test_ratio_must_be_a_share() -> None:
    with pytest.raises(ThresherError, match="ratio"):
        InfoBatch(ratio=1.0).begin(POSITIONS, 3, 0)


@pytest.mark.parametrize(("budget", "epochs"), [("epochs", 2.5), ("samples", 4), ("steps", 4)])
def test_the_rate_of_a_pruned_run_falls_until_its_budget_is_used_up(
    budget: str, epochs: float
) -> None:
    options = {"data": "-", "out": "-", "batch_size": 10, "lr": 1.0, "budget": budget}
    config = TrainConfig.from_dict({**options, "epochs": epochs})
    resolved = resolve(config, 100, 200)
    split = TrainingSplit(np.arange(100), np.ones(100, bool), np.arange(0), np.arange(0))
    pruner = DynamicRandom(ratio=0.5, annealed=0.0)
    samples = EpochSamples(config, split, pruner, resolved)
    planner, done, rates = EpochPlanner(config, resolved, pruned=True), Progress(), []
    while not planner.is_over(done):
        plan = planner.plan(samples.order(done.epoch), done)
        rates += plan.rates
        done.step, done.samples = done.step + len(plan.cuts), done.samples + plan.cuts[-1][1]
        done.epoch += 1
        samples.end_epoch(None)
    # Two and a half epochs of 5 batches; 4 of the 20 batches of all 200 samples.
    batches = {"epochs": 12.5, "samples": 80, "steps": 80}[budget]
    assert len(rates) == np.ceil(batches)
    expected = 0.5 * (1 + np.cos(np.pi * np.arange(len(rates)) / batches))
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    # The selection keeps half of the samples, so 4 epochs of all are 8 passes.
    assert pruner.epochs == {"epochs": 3, "samples": 8, "steps": 8}[budget]


@pytest.mark.slow  # trains twice
def test_the_control_of_infobatch_prunes_as_much(few: Path, tmp_path: Path) -> None:
    base = {"data": str(few), "model": "tiny", "epochs": 6, "batch_size": 12, "device": "cpu"}
    base |= {"evaluate_every": 0, "lr": 0.05}
    first = TrainConfig.from_dict({**base, "dynamic": "infobatch", "out": str(tmp_path / "info")})
    info = train(first)
    like = f"random:like={tmp_path / 'info'}"
    control = train(TrainConfig.from_dict({**base, "dynamic": like, "out": str(tmp_path / "like")}))
    everything = 6 * info.resolved.samples
    assert info.samples < 0.95 * everything
    assert control.samples == pytest.approx(info.samples, abs=12)


def test_weights_do_not_raise_the_loss_that_is_reported(few: Path, tmp_path: Path) -> None:
    """A network that does not learn has the same loss in every epoch, pruned or not."""
    options = {"data": str(few), "out": str(tmp_path / "run"), "epochs": 4, "batch_size": 16}
    options |= {"lr": 0.0, "augment": "none", "dynamic": "infobatch:0.9", "device": "cpu"}
    result = train(TrainConfig.from_dict(options), quiet=True)
    assert result.samples < 3.1 * 287
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    whole, *pruned = [line["train_loss"] for line in lines if line["kind"] == "epoch"]
    assert pruned == pytest.approx([whole] * len(pruned), rel=0.05)  # weighted: 1.6 times it
    assert result.train_loss == pruned[-1]


def test_only_a_finished_run_can_be_matched(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match="result"):
        make_pruner(f"random:like={tmp_path}")
    result = {"config": {"epochs": 8, "budget": "epochs"}, "resolved": {"samples": 100}}
    write_json(tmp_path / "result.json", {**result, "samples": 590, "status": "finished"})
    pruner = make_pruner(f"random:like={tmp_path}")
    assert isinstance(pruner, DynamicRandom)
    assert pruner.ratio == pytest.approx(210 / 700)  # the last of eight epochs trains on all
    write_json(tmp_path / "result.json", {**result, "samples": 590, "status": "stopped"})
    with pytest.raises(ThresherError, match="must be finished"):
        make_pruner(f"random:like={tmp_path}")
