"""Which samples a run trains, validates and tests on. Numbers only; no torch."""

from dataclasses import dataclass

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.split import hold_out
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig


@dataclass(frozen=True)
class Samples:
    """Positions in the pack, ascending, (n,) int64 each."""

    train: np.ndarray
    """Before selection: the order of the epochs is drawn over these."""
    kept: np.ndarray
    """(n,) bool over `train`: what the selection leaves."""
    validation: np.ndarray
    test: np.ndarray

    @property
    def count(self) -> int:
        return int(self.kept.sum())


def choose(config: TrainConfig, pack: Pack) -> Samples:
    """Hold validation out of the training samples first, then filter: it is never filtered."""
    train = pack.indices("train")
    size = config.validation
    count = round(size * len(train)) if size < 1 else round(size)
    held = hold_out(pack.labels[train], count, config.split_seed)
    rest = train[~held]
    kept = np.ones(len(rest), bool)
    if config.selection:
        kept = np.isin(rest, Selection.load(config.selection).indices(pack))
        if not kept.any():
            raise ThresherError(f"the selection {config.selection} keeps no sample", "keep some")
    test = pack.indices("test") if "test" in pack.meta.splits else np.empty(0, np.int64)
    return Samples(rest, kept, train[held], test)
