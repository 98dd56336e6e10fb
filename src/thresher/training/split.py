"""Which samples a run trains, validates and tests on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thresher.errors import InvalidValueError
from thresher.options import Bounds, option

if TYPE_CHECKING:
    import numpy as np

    from thresher.data.pack import Pack
    from thresher.data.split import HoldOut


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The samples of a run."""

    data: str = option()
    """The folder of a pack, or its name in the cache."""
    selection: str | None = None
    """Train only on the samples that this selection (.parquet) keeps."""
    validation: float | None = option(None, ge=0)
    """Training samples to hold out for validation: a count, or a share below 1; by default a tenth
    if the pack has neither test nor validation images, else none."""
    split_seed: int = option(0, ge=0, only_with={"validation": Bounds(gt=0)})
    """Seed of the choice of validation samples."""
    seed: int = option(0, ge=0)
    """Seed of the initial weights, the order of the samples, their augmentation and dropout."""

    @property
    def hold_out(self) -> "HoldOut":
        """The samples held out for validation."""
        from thresher.data.split import HoldOut

        return HoldOut(self.validation, self.split_seed)


@dataclass(frozen=True, kw_only=True)
class PrunerConfig:
    """Dynamic pruning."""

    # Here and not beside the pruners, which load numpy: `thresher train --help` needs only this.
    dynamic: str | None = None
    """Prune while training: infobatch or random, optionally with a ratio (`random:0.3`).
    `random:like=RUN` prunes as much as the finished run in that folder did."""


@dataclass(frozen=True)
class TrainingSplit:
    """Positions of the samples in the pack, ascending, (n,) int64 each."""

    train: "np.ndarray"
    """Training samples before selection; the order of an epoch is drawn over all of them."""
    kept: "np.ndarray"
    """(n,) bool over `train`: the samples that the selection keeps."""
    validation: "np.ndarray"
    test: "np.ndarray"
    labels: "np.ndarray | None" = None
    """(n,) int64 over `train`, if people gave samples new labels."""
    unnamed: int = 0
    """Training samples that the selection does not name; they are not kept."""

    @property
    def count(self) -> int:
        """Number of training samples after selection."""
        return int(self.kept.sum())

    @property
    def watched(self) -> "np.ndarray":
        """The samples that targets are measured on: validation if there is one, else test."""
        return self.validation if len(self.validation) else self.test


def split_samples(config: DataConfig, pack: "Pack") -> TrainingSplit:
    """Hold out validation samples first, then apply the selection, which never filters them.

    Unless `config.validation` is given, a pack with images to test on and a validation split of its
    own is validated on that.
    """
    import numpy as np

    train = pack.indices("train")
    held = config.hold_out.mask(pack)
    rest = train[~held]
    kept, labels, unnamed = np.ones(len(rest), bool), None, 0
    if config.selection is not None:
        from thresher.data.selection import Selection

        selection = Selection.load(config.selection)
        kept = np.isin(rest, selection.indices(pack))
        unnamed = int((~np.isin(rest, pack.positions(selection.ids))).sum())
        if selection.relabelled.any():
            labels = selection.labels_of(pack)[rest]
        if not kept.any():
            raise InvalidValueError(
                f"the selection {config.selection} keeps no training sample", "keep some"
            )
    name, validation = pack.test_split, train[held]
    test = np.empty(0, np.int64) if name is None else pack.indices(name)
    own = config.hold_out.own_split(pack)
    if own is not None:
        validation = pack.indices(own)
    return TrainingSplit(rest, kept, validation, test, labels, unnamed)
