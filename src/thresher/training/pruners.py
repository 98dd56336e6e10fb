"""Dynamic pruning: choose the samples of each epoch while training."""

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from thresher.distributed.group import placement
from thresher.errors import InvalidValueError, counted, nearest
from thresher.paths import RunPaths, read_json

logger = logging.getLogger(__name__)


class DynamicPruner(Protocol):
    """Chooses the samples of each epoch from the losses seen so far.

    Positions are positions in the pack. Every rank makes the same calls (losses are gathered
    before), and must make the same choice.
    """

    def begin(self, positions: np.ndarray, epochs: int, seed: int, batch_size: int) -> None:
        """Start a run of `epochs` epochs on the samples at `positions`, (n,) int64, ascending.

        Epochs that are a whole number of batches train fastest on a GPU.
        """

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of `epoch`, (n,) bool, and the weights of their losses, float32."""

    def observe(self, positions: np.ndarray, losses: np.ndarray) -> None:
        """Take the unweighted losses of samples that were trained on in this epoch."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint must hold to resume exactly."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Set the state that `state` returned."""


def first_full_epoch(epochs: int, annealed: float) -> int:
    """Return the first of the epochs at the end of a run that train on everything.

    An eighth of four epochs is one epoch, not none. The only epoch of a run is not one of them.
    """
    first = math.ceil(epochs * (1 - annealed) - 1e-9)  # 10·(1 - 0.7) is more than 3
    return first - 1 if annealed > 0 and first == epochs > 1 else first


@dataclass
class _EpochPruner:
    """The base of both pruners. Choices depend on (seed, epoch) and the losses only."""

    ratio: float = 0.5
    """Share of the candidates that is pruned."""
    annealed: float = 0.125
    """Share of the epochs, at the end, that train on everything; above 0, at least one epoch."""
    needs_losses: ClassVar[bool] = False
    """Whether the first epoch has nothing to choose by."""

    def begin(self, positions: np.ndarray, epochs: int, seed: int, batch_size: int = 1) -> None:
        if not 0 <= self.ratio < 1:
            raise InvalidValueError(f"ratio must be in [0, 1), got {self.ratio}", "", "ratio")
        if not 0 <= self.annealed <= 1:
            what = f"annealed must be in [0, 1], got {self.annealed}"
            raise InvalidValueError(what, "", "annealed")
        self.positions = np.asarray(positions, np.int64)
        self.epochs, self.seed, self.batch_size = epochs, seed, batch_size
        self.losses = np.full(len(self.positions), np.nan, np.float32)
        if self.needs_losses and self._full(1) and placement().rank == 0:
            logger.warning(
                "%s prunes nothing in %s: the first epoch has no losses to choose by, and at least "
                "the last one trains on all samples",
                type(self).__name__,
                counted(epochs, "epoch"),
            )

    def observe(self, positions: np.ndarray, losses: np.ndarray) -> None:
        self.losses[np.searchsorted(self.positions, positions)] = losses

    def state(self) -> dict[str, np.ndarray]:
        return {"losses": self.losses.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if state["losses"].shape != self.positions.shape:
            raise InvalidValueError(
                "the checkpoint's pruner was used on other samples", "start a new run"
            )
        self.losses = np.array(state["losses"], np.float32)

    def _full(self, epoch: int) -> bool:
        return epoch >= first_full_epoch(self.epochs, self.annealed)

    def _left_out(self, candidates: np.ndarray, epoch: int, left: int) -> np.ndarray:
        """Return the rows that `epoch` leaves out: random candidates, so that `left` are left."""
        stream = np.random.Philox(key=[self.seed, 0x1F0BA], counter=[0, 0, 0, epoch])
        shuffled = np.random.Generator(stream).permutation(candidates)
        return shuffled[: len(self.positions) - left]

    def _in_batches(self, left: float) -> int:
        """Round the samples of an epoch up to a whole number of batches, or to all of them.

        Every step of the epoch then has the same shape, and a captured graph serves all of them.
        """
        batches = max(1, math.ceil(left / self.batch_size - 1e-9))
        return min(len(self.positions), batches * self.batch_size)

    def _everything(self) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.positions)
        return np.ones(n, bool), np.ones(n, np.float32)


@dataclass
class InfoBatch(_EpochPruner):
    """InfoBatch (Qin et al. 2024, https://arxiv.org/abs/2303.04947).

    Of the samples whose last loss is below the mean, a random share `ratio` is left out of the
    epoch, and the gradients of the remaining ones are scaled by the inverse of the share that is
    left, so that the expected gradient is that of the full set. Unlike in the paper, a few less are
    left out, so that an epoch is a whole number of batches. It prunes nothing in the first epoch.
    """

    needs_losses: ClassVar[bool] = True

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        keep, weight = self._everything()
        seen = np.isfinite(self.losses)
        if self._full(epoch) or not seen.any():
            return keep, weight
        (easy,) = np.nonzero(seen & (self.losses < self.losses[seen].mean(dtype=np.float64)))
        if not len(easy):
            return keep, weight
        # At least one easy sample stays, and stands for the others.
        most = min(round(self.ratio * len(easy)), len(easy) - 1)
        left = self._in_batches(len(self.positions) - most)
        left_out = self._left_out(easy, epoch, left)
        keep[left_out] = False
        weight[easy] = len(easy) / (len(easy) - len(left_out))
        return keep, weight


@dataclass
class DynamicRandom(_EpochPruner):
    """Leave out another random share of all samples in each epoch, unweighted: the control.

    Each epoch makes up for the rounding of those before it, so that the share is that of the run.
    """

    ratio: float = 0.3

    def choose(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        keep, weight = self._everything()
        if not self._full(epoch):
            left = total = 0
            for number in range(1, epoch + 2):
                left = self._in_batches((1 - self.ratio) * len(keep) * number - total)
                total += left
            keep[self._left_out(np.arange(len(keep)), epoch, left)] = False
        return keep, weight


PRUNERS: dict[str, type[InfoBatch] | type[DynamicRandom]] = {
    "infobatch": InfoBatch,
    "random": DynamicRandom,
    "dynamic-random": DynamicRandom,  # its name in version 0.1
}


LIKE = "like="


def matching_ratio(run: Path) -> float:
    """Return the ratio with which `DynamicRandom` leaves out as many samples as a run did.

    InfoBatch prunes only samples with a low loss, and nothing in its first epoch, so its own ratio
    says little about how much it pruned.
    """
    result = read_json(RunPaths(run).result, "run's result")
    try:
        epochs, numbers = result["config"]["epochs"], result["resolved"]
        samples, dropped = numbers["samples"], numbers.get("dropped")
        budget, seen = result["config"]["budget"], result["samples"]
        used = samples if dropped is None else samples - dropped
        if dropped is not None:  # `drop_last`: whole batches
            epochs = numbers["total_samples"] / used
    except (KeyError, TypeError):
        raise InvalidValueError(f"{run} does not hold a run's result", "", "dynamic") from None
    if budget != "epochs" or result["status"] != "finished":
        raise InvalidValueError(
            f"the run {run} must be finished and have the budget epochs to be matched",
            "give another run",
            "dynamic",
        )
    pruned = min(epochs, first_full_epoch(math.ceil(epochs), DynamicRandom.annealed))
    if not pruned:
        return 0.0
    return max(0.0, 1 - (seen - (epochs - pruned) * used) / (pruned * samples))


def make_pruner(name: str | None) -> DynamicPruner | None:
    """Return the pruner that `NAME`, `NAME:RATIO` or `random:like=RUN` means.

    None and "none" mean no pruner. RUN is the folder of a finished run, which is matched.
    """
    if name is None or name == "none":
        return None
    kind, colon, ratio = name.partition(":")
    if kind not in PRUNERS:
        raise InvalidValueError(f'unknown pruner "{kind}"', nearest(kind, PRUNERS), "dynamic")
    if not colon:
        return PRUNERS[kind]()
    if kind != "infobatch" and ratio.startswith(LIKE):
        return DynamicRandom(ratio=matching_ratio(Path(ratio.removeprefix(LIKE))))
    try:
        share = float(ratio)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise InvalidValueError(
            f'dynamic: the ratio of {kind} must be in [0, 1), got "{ratio}"', "", "dynamic"
        )
    return PRUNERS[kind](ratio=share)
