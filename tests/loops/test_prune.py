"""Dynamic pruning around a DataLoader: the pruner's samples, weights and ranks."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
)

from gloo_ranks import run_ranks
from thresher.data.order import epoch_order
from thresher.data.sampler import EpochSampler
from thresher.errors import InvalidValueError
from thresher.training.prune import PrunedLoader, prune
from thresher.training.pruners import InfoBatch

N, BATCH, EPOCHS = 103, 8, 8


class Numbers(Dataset[int]):
    """Items are their own index, so that a batch says which samples it holds."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> int:
        return row


def fake_losses(indices: Tensor) -> Tensor:
    return indices.double().square().requires_grad_()


def epoch(loader: PrunedLoader) -> list[int]:
    seen: list[int] = []
    for batch in loader:
        loader.loss(fake_losses(batch))
        seen += batch.tolist()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_hold_the_samples_of_the_pruner(workers: int) -> None:
    loader = prune(
        DataLoader(Numbers(), BATCH, shuffle=True, num_workers=workers), epochs=EPOCHS, seed=3
    )
    expected = InfoBatch()
    expected.begin(np.arange(N), EPOCHS, 3, BATCH)
    pruned = 0
    for number in range(EPOCHS):
        keep, weights = expected.choose(number)
        seen: list[int] = []
        for batch in loader:
            losses = fake_losses(batch)
            mean = loader.loss(losses)
            assert mean.item() == pytest.approx((weights[batch] * losses.detach().numpy()).mean())
            seen += batch.tolist()
        assert sorted(seen) == np.flatnonzero(keep).tolist()
        assert seen != sorted(seen)
        pruned += N - len(seen)
        expected.observe(np.array(seen), np.array(seen, float) ** 2)
    assert loader.left_out == pruned > N
    assert len(seen) == N, "the last epochs are not pruned"


@pytest.mark.slow
def test_the_expected_gradient_is_that_of_all_samples() -> None:
    """Over many choices, InfoBatch's weighted sum of losses has the mean of the full sum."""
    sums = []
    for seed in range(200):
        loader = prune(DataLoader(Numbers(), BATCH), "infobatch:0.5", epochs=100, seed=seed)
        epoch(loader)
        sums.append(sum(float(loader.loss(fake_losses(b)).detach()) * len(b) for b in loader))
    full = sum(n**2 for n in range(N))
    assert np.mean(sums) == pytest.approx(full, rel=0.01)
    assert np.std(sums) > 0


@pytest.mark.parametrize("method", ["infobatch", "random:0.4"])
def test_a_resumed_loader_goes_on_with_the_same_samples(method: str, tmp_path: Path) -> None:
    def fresh() -> PrunedLoader:
        return prune(DataLoader(Numbers(), BATCH), method, epochs=EPOCHS)

    whole = fresh()
    expected = [epoch(whole) for _ in range(4)]
    first = fresh()
    assert [epoch(first) for _ in range(2)] == expected[:2]
    saved = first.state_dict()
    torch.save(saved, tmp_path / "checkpoint.pt")
    second = fresh()
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt"))
    third = fresh()
    third.load_state_dict(second.state_dict())  # saved again before an epoch
    used = fresh()
    for batch in used:
        used.loss(-fake_losses(batch))
    used.load_state_dict(saved)
    older = fresh()
    arrays = {name: tensor.numpy() for name, tensor in saved["pruner"].items()}
    kept = {name: saved[name] for name in ("epoch", "left_out")}
    older.load_state_dict({**kept, "pruner": arrays})
    for resumed in (second, third, used, older):
        assert [epoch(resumed) for _ in range(2)] == expected[2:]
        assert resumed.left_out == whole.left_out


def test_the_state_of_another_loader_is_refused() -> None:
    first = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    epoch(first)
    saved = first.state_dict()
    other_method = prune(DataLoader(Numbers(), BATCH), "random:0.4", epochs=EPOCHS)
    with pytest.raises(InvalidValueError, match="by InfoBatch, but this one is pruned by Dynamic"):
        other_method.load_state_dict(saved)
    with pytest.raises(InvalidValueError, match='not the state of a pruned loader: no "epoch"'):
        other_method.load_state_dict({})
    part, other_part = np.arange(0, N - 20), np.arange(10, N - 10)  # as many samples
    loaders = [
        prune(DataLoader(Numbers(), BATCH, sampler=samples.tolist()), epochs=EPOCHS)
        for samples in (part, other_part)
    ]
    epoch(loaders[0])
    loaders[1].load_state_dict(loaders[0].state_dict())
    with pytest.raises(InvalidValueError, match="is that of other samples"):
        next(iter(loaders[1]))


def test_counted_epochs_have_their_own_order() -> None:
    sampler: Any = EpochSampler(np.arange(N), seed=2)
    loader = prune(DataLoader(Numbers(), BATCH, sampler=sampler), "random:0", epochs=EPOCHS)
    orders = [epoch(loader) for _ in range(3)]
    for number, order in enumerate(orders):
        assert order == epoch_order(N, 2, number).tolist()


def _ranks(rank: int, world: int, method: str, folder: Path) -> list[list[int]]:
    # A new file each time: one of a try that failed names ports that nobody listens to any more.
    file = [f"{folder}/{uuid.uuid4().hex}"]
    dist.broadcast_object_list(file)
    dist.barrier()  # or a rank may leave before another has joined
    # Loaders are often made before the ranks join, as those that are given to Lightning's `fit`.
    dist.destroy_process_group()
    sampler: Any = DistributedSampler(Numbers(), world, rank, shuffle=True)
    loader = prune(DataLoader(Numbers(), BATCH, sampler=sampler), method, epochs=EPOCHS)
    order = EpochSampler(np.arange(N))
    assert len(order) == N
    dist.init_process_group("gloo", f"file://{file[0]}", rank=rank, world_size=world)
    assert list(order) == list(EpochSampler(np.arange(N), rank=rank, world=world))
    epochs = []
    for number in range(4):
        loader.set_epoch(number)
        epochs.append(epoch(loader))
    return epochs


@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("method", ["infobatch", "random:0.3"])
def test_three_ranks_make_one_choice_and_equal_steps(method: str, tmp_path: Path) -> None:
    expected: Any = prune(DataLoader(Numbers(), 3 * BATCH), method, epochs=EPOCHS)
    ranks = run_ranks(3, _ranks, method, tmp_path)
    for number in range(4):
        parts = [epochs[number] for epochs in ranks]
        assert len({len(part) for part in parts}) == 1
        chosen = {n for part in parts for n in part}
        assert chosen == set(epoch(expected))
        # A sample that the sampler repeats must not become a batch of its own on each rank.
        assert sum(map(len, parts)) - len(chosen) == (2 if len(chosen) == N else 0)


def _undivided(rank: int, world: int, dataset: Dataset[int]) -> str:
    loader = prune(DataLoader(dataset, BATCH, shuffle=True), epochs=EPOCHS)
    with pytest.raises(InvalidValueError) as caught:
        iter(loader)
    return str(caught.value)


@pytest.mark.xdist_group("ranks")
def test_samples_that_are_not_divided_among_the_workers_are_refused() -> None:
    """Every worker trained on all of them, as with Lightning and accelerate."""
    messages = run_ranks(2, _undivided, Numbers())
    assert all("gives the same 103 indices to each of the 2 workers" in text for text in messages)


def _one_sample(rank: int, world: int) -> list[list[int]]:
    dataset = Subset(Numbers(), [5])
    sampler: Any = DistributedSampler(dataset, world, rank)
    loader = prune(DataLoader(dataset, BATCH, sampler=sampler), "random:0.3", epochs=EPOCHS)
    return [batch.tolist() for batch in loader]


@pytest.mark.xdist_group("ranks")
def test_a_distributed_sampler_may_give_one_sample_to_all_workers() -> None:
    assert run_ranks(2, _one_sample) == [[[5]], [[5]]]


def test_the_length_is_that_of_the_epoch_that_an_iterator_begins() -> None:
    """A trainer that takes as many batches as the last epoch had would cut the last, full one."""
    loader = prune(DataLoader(Numbers(), BATCH, shuffle=True), "infobatch", epochs=EPOCHS)
    lengths, full = [], -(-N // BATCH)
    assert len(loader) == full
    for _ in range(EPOCHS):
        batches = iter(loader)
        lengths.append(len(loader))
        seen = [loader.loss(fake_losses(batch)) for batch in batches]
        assert len(seen) == len(loader) == lengths[-1]
    assert lengths[0] == lengths[-1] == full > max(lengths[1:-1])


def test_a_trainer_may_ask_for_the_length_of_an_epoch_that_it_has_only_chosen() -> None:
    """As that of transformers 4 does, which takes as many batches: the full epoch was cut."""
    loader = prune(DataLoader(Numbers(), BATCH), "infobatch", epochs=EPOCHS)
    seen: list[int] = []
    for number in range(EPOCHS):
        loader.set_epoch(number)
        steps, batches = len(loader), iter(loader)
        assert len(loader) <= steps
        seen = []
        for _, batch in zip(range(steps), batches, strict=False):
            loader.loss(fake_losses(batch))
            seen += batch.tolist()
    assert seen == list(range(N))


def test_an_iterator_that_is_not_used_counts_as_no_epoch() -> None:
    """Lightning makes one before it trains."""

    def fresh() -> PrunedLoader:
        return prune(DataLoader(Numbers(), BATCH), "random:0.4", epochs=EPOCHS)

    expected, loader = fresh(), fresh()
    for number in range(3):
        iter(loader)
        assert len(loader) == (len(expected) if number else -(-N // BATCH))
        assert epoch(loader) == epoch(expected)
    assert loader.left_out == expected.left_out
    assert loader.state_dict()["epoch"] == 3


def test_losses_that_are_not_given_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing would be pruned, without a word."""
    given, random, forgotten = (
        prune(DataLoader(Numbers(), BATCH), method, epochs=EPOCHS)
        for method in ("infobatch", "random:0.3", "infobatch")
    )
    for _ in range(3):
        epoch(given)
        given.state_dict()
        list(random)  # chooses without losses
    assert not caplog.text
    for _ in range(2):
        list(forgotten)
    assert caplog.text.count("losses of the last batch were not given") == 1


def test_an_epoch_may_be_chosen_after_its_iterator_was_made() -> None:
    """As Lightning does in its first epoch, and where it resumes."""

    def fresh() -> PrunedLoader:
        return prune(DataLoader(Numbers(), BATCH), "random:0.4", epochs=EPOCHS)

    expected = fresh()
    epochs = [epoch(expected) for _ in range(EPOCHS)]
    for number in (0, 2, EPOCHS - 1):
        loader = fresh()
        batches = iter(loader)
        loader.batch_sampler.sampler.set_epoch(number)
        seen = next(batches).tolist()
        assert len(loader) == -(-len(epochs[number]) // BATCH)
        for batch in batches:
            seen += batch.tolist()
        assert seen == epochs[number]
        assert loader.left_out == N - len(seen)


def test_another_epoch_than_that_of_the_state_is_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The Trainer of transformers chooses it by the steps of full epochs."""
    first, second = (prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS) for _ in range(2))
    for _ in range(2):
        epoch(first)
    for _ in range(2):
        second.load_state_dict(first.state_dict())
        second.set_epoch(2)
    assert not caplog.text
    second.set_epoch(1)
    assert "continues with epoch 2, but epoch 1 was chosen" in caplog.text


def test_losses_of_batches_that_were_taken_together_are_refused() -> None:
    """They would get the weights of the last one of them."""
    loader = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    batches = iter(loader)
    first, second = next(batches), next(batches)
    loader.loss(fake_losses(first))
    with pytest.raises(InvalidValueError, match="`loss` was not called between two batches"):
        loader.loss(fake_losses(second))


def test_a_batch_may_have_two_losses_or_none() -> None:
    loader = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    for number, batch in enumerate(loader):
        for _ in range((2, 2, 0, 1)[number % 4]):
            loader.loss(fake_losses(batch))


def test_losses_of_an_evaluation_are_refused() -> None:
    """They took the place of those of the last training batch if they were as many."""
    loader = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    for batch in loader:
        loader.loss(fake_losses(batch))
        with torch.no_grad(), pytest.raises(InvalidValueError, match="as in an evaluation"):
            loader.loss(fake_losses(batch) + 1e6)
    with torch.no_grad(), pytest.raises(InvalidValueError, match="as in an evaluation"):
        loader.loss(fake_losses(batch))
    losses = loader.state_dict()["pruner"]["losses"]
    assert losses.tolist() == [row**2 for row in range(N)]


def test_a_state_from_the_middle_of_an_epoch_is_mentioned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    for number, batch in enumerate(loader, 1):
        loader.loss(fake_losses(batch))
        if number == len(loader):
            loader.state_dict()
    loader.state_dict()
    assert not caplog.text
    next(iter(loader))
    loader.state_dict()
    assert "in the middle of epoch 1" in caplog.text


class Grouped(BatchSampler):
    """As that of an accelerate loader, or torchdata's."""


class Doubled(DataLoader[Any]):
    """A loader that changes its batches, as one that moves them to a GPU does."""

    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


def test_losses_may_be_overwritten_by_the_next_batch() -> None:
    """As the output of a CUDA graph is, which has the same memory in every replay."""
    output = torch.empty(BATCH, dtype=torch.float64)
    loader = prune(DataLoader(Numbers(), BATCH), epochs=EPOCHS)
    for batch in loader:
        loader.loss(output[: len(batch)].copy_(batch.double().square()))
    output.fill_(-1)
    seen = loader.state_dict()["pruner"]["losses"]
    assert np.array_equal(seen, np.arange(N, dtype=np.float32) ** 2)


def test_what_cannot_be_pruned_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="samples of the loader have no indices"):
        prune(DataLoader(Stream(), BATCH), epochs=2)
    with pytest.raises(InvalidValueError, match="samples of the loader have no indices"):
        prune(DataLoader(Numbers(), batch_size=None), epochs=2)
    with pytest.raises(InvalidValueError, match="must be a torch DataLoader, got list"):
        prune([1, 2], epochs=2)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="epochs must be at least 1, got 0"):
        prune(DataLoader(Numbers(), BATCH), epochs=0)
    with pytest.raises(InvalidValueError, match='unknown pruner "info"'):
        prune(DataLoader(Numbers(), BATCH), "info", epochs=2)
    drawn = WeightedRandomSampler(torch.rand(N).tolist(), N)
    with pytest.raises(InvalidValueError, match="draws with replacement"):
        prune(DataLoader(Numbers(), BATCH, sampler=drawn), epochs=EPOCHS)
    with pytest.raises(InvalidValueError, match="made by Grouped, so that samples cannot be left"):
        prune(DataLoader(Numbers(), batch_sampler=Grouped(range(N), BATCH, False)), epochs=EPOCHS)
    with pytest.raises(InvalidValueError, match="Doubled has an `__iter__` of its own"):
        prune(Doubled(Numbers(), BATCH), epochs=EPOCHS)
    drawn = WeightedRandomSampler(torch.rand(N).tolist(), N // 2, replacement=False)
    loader = prune(DataLoader(Numbers(), BATCH, sampler=drawn), epochs=EPOCHS)
    epoch(loader)
    with pytest.raises(InvalidValueError, match="yields other samples than in its first epoch"):
        epoch(loader)


def test_losses_must_be_those_of_the_batch() -> None:
    loader = prune(DataLoader(Numbers(), BATCH), epochs=2)
    with pytest.raises(InvalidValueError, match="after a batch"):
        loader.loss(torch.zeros(BATCH))
    next(iter(loader))
    with pytest.raises(InvalidValueError, match=r"each of the 8 samples .* got the shape \(\)"):
        loader.loss(torch.tensor(1.0))
