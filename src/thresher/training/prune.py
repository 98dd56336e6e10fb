"""Dynamic pruning around a DataLoader of one's own."""

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from thresher.data.sampler import process_rank
from thresher.distributed.group import Group, Placement
from thresher.errors import InvalidValueError
from thresher.training.pruners import DynamicPruner, DynamicRandom, make_pruner

logger = logging.getLogger(__name__)

# Settings of a DataLoader that a copy of it takes over.
_COPIED = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"),
    *("multiprocessing_context", "prefetch_factor", "persistent_workers", "pin_memory_device"),
)

ONE_BY_ONE = "call it before the next batch is taken, also where gradients are accumulated"


def prune(
    loader: "DataLoader[Any]",
    method: str | DynamicPruner = "infobatch",
    *,
    epochs: int,
    seed: int = 0,
) -> "PrunedLoader":
    """Leave samples out of each epoch of a DataLoader, chosen from the losses so far.

    The result yields the batches of `loader` without the samples that are left out. Give the
    losses of each batch to its `loss` method, which weights and remembers them. On several workers
    (torch.distributed), losses are shared at the end of an epoch, and every worker takes as many
    steps; the sampler of the loader divides the samples among them.

    Args:
        loader: A DataLoader of a map-style data set, with any sampler.
        method: "infobatch" or "random", optionally with a ratio ("random:0.3"), or a pruner of
            your own.
        epochs: Epochs of the whole training. The last eighth of them, at least one, is not pruned.
        seed: Seed of the choice.

    Raises:
        InvalidValueError: The samples of the loader have no indices, or differ between epochs.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> inputs = torch.linspace(0, 1, 64)[:, None]
        >>> loader = DataLoader(TensorDataset(inputs, inputs[:, 0] > 0.3), 8, shuffle=True)
        >>> loader = prune(loader, epochs=8)
        >>> model = torch.nn.Linear(1, 1)
        >>> for epoch in range(8):
        ...     for x, y in loader:
        ...         losses = torch.nn.functional.binary_cross_entropy_with_logits(
        ...             model(x)[:, 0], y.float(), reduction="none"
        ...         )
        ...         loader.loss(losses).backward()
        >>> loader.left_out > 0
        True
    """
    pruner = make_pruner(method) if isinstance(method, str) else method
    if pruner is None:
        raise InvalidValueError(f'method must name a pruner, got "{method}"', "", "method")
    if epochs < 1:
        raise InvalidValueError(f"epochs must be at least 1, got {epochs}", "", "epochs")
    if not isinstance(loader, DataLoader):
        what = f"loader must be a torch DataLoader, got {type(loader).__name__}"
        raise InvalidValueError(what, "build one: `DataLoader(dataset, batch_size=…)`", "loader")
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InvalidValueError(
            f"{type(loader).__name__} has an `__iter__` of its own, which would not be called",
            "prune a torch DataLoader, before `accelerator.prepare`, and change its batches then",
        )
    batches = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or batches is None:
        raise InvalidValueError(
            "the samples of the loader have no indices to prune by",
            "use a map-style data set, with `batch_size` and any `sampler`",
        )
    if type(batches) is not BatchSampler:
        raise InvalidValueError(
            f"the batches of the loader are made by {type(batches).__name__}, so that samples "
            "cannot be left out of them",
            "use torch's DataLoader with `batch_size` and any `sampler`, and prune it before "
            "`accelerator.prepare`",
        )
    if getattr(batches.sampler, "replacement", False):
        raise InvalidValueError(
            "the sampler of the loader draws with replacement, so its epochs hold other samples",
            "use one that yields every sample once in each epoch",
        )
    if not getattr(loader, "in_order", True):
        raise InvalidValueError("the loader gives batches in any order", "set `in_order` to True")
    return PrunedLoader(loader, batches, pruner, epochs, seed)


class PrunedLoader:
    """A DataLoader whose epochs leave samples out; made by `prune`.

    Attributes:
        dataset: The data set of the loader.
        batch_sampler: The batches of the epoch. Lightning chooses the epoch by its `sampler`.
        left_out: Number of samples left out so far, on all workers.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        batches: BatchSampler,
        pruner: DynamicPruner,
        epochs: int,
        seed: int,
    ) -> None:
        self.dataset = loader.dataset
        self.left_out = 0
        self._full, self._pruner, self._epochs, self._seed = batches, pruner, epochs, seed
        self._epoch = 0
        self._samples: np.ndarray | None = None
        self._weights = np.empty(0, np.float32)
        self._indices: np.ndarray | None = None
        self._observed: list[tuple[np.ndarray, Tensor]] = []
        self._started = self._chosen = self._begun = self._skipped = self._answered = False
        self._restored: dict[str, np.ndarray] | None = None
        self._restored_samples: np.ndarray | None = None
        self.batch_sampler = self._plan = _Plan(self)
        settings = {name: getattr(loader, name) for name in _COPIED if hasattr(loader, name)}
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset, batch_sampler=self._plan, **settings
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the next epoch, from 0; by default epochs are counted."""
        if self._restored is not None and self._samples is None and epoch != self._epoch:
            logger.warning(
                "the restored state of a pruned loader continues with epoch %d, but epoch %d was "
                "chosen",
                self._epoch,
                epoch,
            )
        self._epoch, self._chosen = epoch, True
        if hasattr(self._full.sampler, "set_epoch"):
            self._full.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the batches of this worker in the epoch; before the first batch, in a full one.

        Most epochs have fewer, so let a schedule of learning rates count samples or epochs. A
        trainer that asks once, before it trains, takes it for the most that an epoch has. So does
        one that asks after `set_epoch`, before it iterates over the epoch.
        """
        known = self._started and not self._chosen
        return len(self._plan.batches) if known else len(self._full)

    def __iter__(self) -> Iterator[Any]:
        # Planned here, since a trainer asks for the length next. Counted with the first batch: a
        # trainer may ask for an iterator that it does not use.
        return self._batches(self._begin_epoch(), self._epoch)

    def _begin_epoch(self) -> int:
        """Plan the batches of the epoch; return the number of samples that are left out."""
        needs_losses = not isinstance(self._pruner, DynamicRandom)
        if needs_losses and self._started and not self._answered:
            logger.warning(
                "the losses of the last batch were not given to the pruned loader, which chooses "
                "samples by them: call its `loss` method for each batch"
            )
        self._observe()
        self.set_epoch(self._epoch)  # of the sampler too, if the epochs are counted here
        parts = self._group.gather(np.fromiter(self._full.sampler, np.int64))
        if self._samples is None:
            _check_divided(parts, self._full.sampler)
        full = _without_padding(_interleaved(parts), self._group.world)
        order = self._choose(full)
        # As in torch's DistributedSampler, the first samples are repeated to fill the last row.
        rows = -(-len(order) // self._group.world)
        own = np.resize(order, rows * self._group.world)[self._group.rank :: self._group.world]
        self._plan.cut(own, self._full.batch_size, self._full.drop_last)
        self._chosen = False
        return len(full) - len(order)

    def _batches(self, left_out: int, epoch: int) -> Iterator[Any]:
        if epoch != self._epoch:  # chosen since then, as Lightning does where it resumes
            left_out = self._begin_epoch()
        self._started, self._chosen = True, False
        self._epoch += 1
        self.left_out += left_out
        self._skipped = self._answered = False
        # Batches arrive in the order of the sampler, also from worker processes.
        planned = self._plan.batches
        for number, (indices, batch) in enumerate(zip(planned, self._loader, strict=True), 1):
            self._skipped = number > 1 and not self._answered
            self._indices, self._answered = np.array(indices), False
            self._begun = number < len(planned)
            yield batch
        self._indices = None

    def loss(self, losses: Tensor) -> Tensor:
        """Return the weighted mean of a batch's losses, and remember them.

        Args:
            losses: (n,) losses of the samples of the batch that was yielded last.

        Raises:
            InvalidValueError: The losses are not those of one training batch.
        """
        # The Trainer of transformers evaluates with the function that computes its training losses.
        if not torch.is_grad_enabled():
            raise InvalidValueError(
                "loss was called without gradients, as in an evaluation, whose losses are not "
                "those of a training batch",
                "use `losses.mean()` where the model is evaluated",
            )
        if self._indices is None:
            raise InvalidValueError("loss must be called after a batch of the loader", ONE_BY_ONE)
        if losses.shape != self._indices.shape:
            raise InvalidValueError(
                f"losses must have one value for each of the {len(self._indices)} samples of the "
                f"batch, got the shape {tuple(losses.shape)}",
                'compute them with reduction="none"',
                "losses",
            )
        # A second loss of a batch is fine, as for an optimizer of two passes, but not right after a
        # batch that has none: it is then the loss of that batch, with the weights of this one.
        if self._answered and self._skipped:
            raise InvalidValueError("`loss` was not called between two batches", ONE_BY_ONE)
        self._answered = True
        # A copy: the output of a CUDA graph has the same memory for every batch.
        self._observed.append((self._indices, losses.detach().clone()))
        weights = torch.from_numpy(self._weights[self._rows(self._indices)])
        return (losses * weights.to(losses.device, losses.dtype)).mean()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint at the end of an epoch must hold; every worker calls it."""
        if self._begun:
            logger.warning(
                "the state of a pruned loader was taken in the middle of epoch %d: a training that "
                "resumes from it skips the rest of that epoch",
                self._epoch - 1,
            )
        self._observe()
        pruner, samples = self._restored or {}, self._restored_samples
        if self._samples is not None:
            pruner, samples = self._pruner.state(), self._samples
        # Tensors, which `torch.load` reads by default; it refuses arrays.
        tensors = {name: torch.from_numpy(array) for name, array in pruner.items()}
        state = {"epoch": self._epoch, "left_out": self.left_out, "pruner": tensors}
        if samples is not None:
            state["samples"] = torch.from_numpy(samples.copy())
        return {**state, "method": type(self._pruner).__name__}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set what `state_dict` returned; what this loader has seen so far is forgotten.

        Raises:
            InvalidValueError: It is not the state of a pruned loader, or of one with another
                method. Other samples are noticed when the next epoch begins.
        """
        missing = [name for name in ("epoch", "left_out", "pruner") if name not in state]
        if missing:
            raise InvalidValueError(f'this is not the state of a pruned loader: no "{missing[0]}"')
        method = type(self._pruner).__name__
        if state.get("method", method) != method:  # earlier versions stored none
            raise InvalidValueError(
                f"the state is that of a loader pruned by {state['method']}, but this one is "
                f"pruned by {method}"
            )
        self.left_out, self._restored = state["left_out"], None
        self.set_epoch(state["epoch"])
        # A checkpoint may have been loaded to a GPU; earlier versions stored arrays.
        self._restored = {name: _array(value) for name, value in state["pruner"].items()} or None
        samples = state.get("samples")
        self._restored_samples = None if samples is None else _array(samples)
        # The pruner begins anew in the next epoch, from the restored state.
        self._samples, self._indices, self._observed = None, None, []
        self._begun = False

    @property
    def sampler(self) -> Any:
        """Missing, since a loader that accelerate makes of it to skip batches knows no losses."""
        raise AttributeError(
            "a pruned loader cannot skip batches: go on at the end of an epoch, with "
            "`load_state_dict`; the Trainer of transformers cannot resume a pruned training"
        )

    @property
    def _group(self) -> Group:
        """The workers, which may join after the loader was made."""
        return Group(Placement(*process_rank()), torch.device("cpu"))

    def _choose(self, order: np.ndarray) -> np.ndarray:
        """Return the samples of the epoch, in the order of the sampler, of all workers."""
        if not len(order):
            raise InvalidValueError("the sampler of the loader yields no sample")
        if self._samples is None:
            self._begin(order)
        keep, self._weights = self._pruner.choose(self._epoch)
        chosen = order[keep[self._rows(order)]]
        if not len(chosen):
            raise InvalidValueError(f"the pruner left no sample for epoch {self._epoch}")
        return chosen

    def _begin(self, order: np.ndarray) -> None:
        world = self._group.world
        samples, count = np.unique(order), len(self.dataset)  # type: ignore[arg-type]
        # drop_last of a distributed sampler leaves others out in each epoch; a selection does not.
        if getattr(self._full.sampler, "drop_last", True) and len(samples) > count - world:
            samples = np.arange(count)
        restored = self._restored_samples
        if restored is not None and not np.array_equal(restored, samples):
            raise InvalidValueError(
                "the restored state of the pruned loader is that of other samples "
                f"({len(restored):,}; this loader has {len(samples):,})",
                "use the data set and the selection that it was saved with",
            )
        self._samples = samples
        self._pruner.begin(samples, self._epochs, self._seed, self._full.batch_size * world)
        if self._restored is not None:
            self._pruner.restore(self._restored)

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        assert self._samples is not None
        rows = np.searchsorted(self._samples, indices).clip(max=len(self._samples) - 1)
        if (self._samples[rows] != indices).any():
            raise InvalidValueError(
                "the sampler of the loader yields other samples than in its first epoch",
                "use one that yields every sample once in each epoch",
            )
        return rows

    def _observe(self) -> None:
        """Give the losses of the last epoch to the pruner, the same on every worker."""
        indices = [indices for indices, _ in self._observed]
        losses = [losses.float().cpu().numpy() for _, losses in self._observed]
        self._observed = []
        own = (np.concatenate(indices), np.concatenate(losses)) if indices else None
        for shared in self._group.gather(own):
            if shared is not None:
                self._pruner.observe(*shared)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value.cpu() if isinstance(value, Tensor) else value)


def _check_divided(parts: list[np.ndarray], sampler: Any) -> None:
    """Raise if every worker would train on the same samples.

    Accelerate and Lightning divide those of a torch DataLoader, but not of a pruned one. Indices
    may be the same, too, where each worker has a data set of its own; losses would be mixed up.
    """
    if len(parts) == 1 or getattr(sampler, "num_replicas", 1) > 1:
        return
    first = np.sort(parts[0])
    if all(np.array_equal(np.sort(part), first) for part in parts[1:]):
        raise InvalidValueError(
            f"the sampler of the loader gives the same {len(first):,} indices to each of the "
            f"{len(parts)} workers, so they are not divided",
            "give the loader a DistributedSampler of the whole data set, or `selection.sampler`",
        )


def _interleaved(parts: list[np.ndarray]) -> np.ndarray:
    """Return the order that workers' samplers take every n-th sample of."""
    equal = len({len(part) for part in parts}) == 1
    return np.stack(parts, 1).reshape(-1) if equal else np.concatenate(parts)


def _without_padding(order: np.ndarray, world: int) -> np.ndarray:
    """Return the order without the samples that a distributed sampler repeats to fill its last row.

    A pruned epoch is whole batches; one sample more would be a batch of its own on each worker.
    """
    first = np.sort(np.unique(order, return_index=True)[1])
    return order[first] if len(order) - len(first) < world else order


class _Plan:
    """The batches of an epoch: the batch sampler of the pruned loader."""

    def __init__(self, sampler: PrunedLoader) -> None:
        self.sampler = sampler
        self.batches: list[list[int]] = []

    def cut(self, order: np.ndarray, batch_size: int, drop_last: bool) -> None:
        end = len(order) // batch_size * batch_size if drop_last else len(order)
        cuts = range(0, end, batch_size)
        self.batches = [order[begin : min(begin + batch_size, end)].tolist() for begin in cuts]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)
