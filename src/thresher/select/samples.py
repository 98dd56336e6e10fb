"""What a filter looks at: the training samples of a pack, and what a network made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from thresher.errors import ThresherError


@dataclass(frozen=True)
class Samples:
    """Training samples in pack order, n of each; what is not known is None."""

    ids: list[str]
    labels: np.ndarray
    """(n,) int64."""
    features: np.ndarray | None = None
    """(n, d) penultimate features, any float type, possibly memory-mapped."""
    probabilities: np.ndarray | None = None
    """(n, classes) float32, the network's own."""
    dynamics: Mapping[str, np.ndarray] = field(default_factory=dict)
    """`el2n`, `forgetting`, `learned_epoch`, `loss` of a run that recorded them, each (n,)."""
    classes: list[str] = field(default_factory=list)
    """Names of the classes, for reasons that people read."""

    def __len__(self) -> int:
        return len(self.ids)

    def need_features(self) -> np.ndarray:
        """The features, or a refusal that says how to get them."""
        if self.features is None:
            raise ThresherError(
                "this filter needs features", "give a run (`--run`) or features (`--features`)"
            )
        return self.features

    def need_dynamics(self, name: str) -> np.ndarray:
        if name not in self.dynamics:
            raise ThresherError(
                "this filter needs the training dynamics of a run",
                "train with `--record-dynamics` and give that run (`--run`)",
            )
        return np.asarray(self.dynamics[name])

    def class_name(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else str(label)

    def take(self, rows: np.ndarray) -> "Samples":
        """The samples of some rows (an ascending index array)."""
        return replace(
            self,
            ids=[self.ids[row] for row in rows],
            labels=self.labels[rows],
            features=None if self.features is None else self.features[rows],
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            dynamics={name: values[rows] for name, values in self.dynamics.items()},
        )
