"""Filter, retrain on what is kept, filter again: the paper's future work.

Training is not this layer's business: it is handed in as a function from a kept set to features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from thresher.errors import ThresherError
from thresher.select.filters.base import Filter
from thresher.select.filters.network import NetworkFilter
from thresher.select.samples import Samples

Retrain = Callable[[int, np.ndarray], np.ndarray]
"""(round, keep (n,) bool) → features (n, d) of all samples, by a network trained on the kept."""


@dataclass
class RecursiveFilter(Filter):
    """Applies the network filter `rounds` times, each on features of a network retrained on what
    the rounds before kept.

    A share to drop is reached in equal steps: with drop 0.1 and two rounds, 5 % go in each.
    The score is the network filter's in the last round that saw the sample.
    """

    name: ClassVar[str] = "recursive"

    retrain: Retrain = field(repr=False)
    base: NetworkFilter = field(default_factory=NetworkFilter)
    rounds: int = 2

    def _fit(self, samples: Samples) -> None:
        if self.rounds < 1:
            raise ThresherError(f"{self.rounds} rounds filter nothing", "give at least 1")
        n = len(samples)
        keep = np.ones(n, bool)
        score, cluster = np.zeros(n, np.float32), np.full(n, -2, np.int32)
        x, y = np.full((2, n), np.nan, np.float32)
        reason = [""] * n
        history = []
        for round_ in range(self.rounds):
            rows = np.flatnonzero(keep)
            features = samples.features
            if round_ > 0 or features is None:
                features = self.retrain(round_, keep.copy())
            step = self.base
            if step.drop is not None:
                # `drop` is of all samples; each round sees fewer.
                step = replace(step, drop=step.drop / self.rounds * n / len(rows))
            here = replace(samples, features=features, probabilities=None, dynamics={})
            found = step.fit(here.take(rows))
            score[rows] = found.score_
            assert found.cluster_ is not None
            cluster[rows] = found.cluster_
            if found.x_ is not None and found.y_ is not None:
                x[rows], y[rows] = found.x_, found.y_
            for row, kept, why in zip(rows, found.keep_, found.reason_, strict=True):
                reason[row] = why if kept or not why else f"round {round_ + 1}: {why}"
            keep[rows] = found.keep_
            history.append({"kept": int(keep.sum()), **found.report_})
            self.warnings_ += [w for w in found.warnings_ if w not in self.warnings_]
            self.seconds_[f"round {round_ + 1}"] = found.seconds_["total"]
        self.keep_, self.score_, self.reason_, self.cluster_ = keep, score, reason, cluster
        self.x_, self.y_ = x, y
        last = history[-1]
        self.report_.update(
            {key: last[key] for key in ("kl", "eps", "min_samples") if key in last},
            rounds=[{k: v for k, v in one.items() if k != "curve"} for one in history],
        )

    def settings(self) -> dict[str, object]:
        return {"rounds": self.rounds, **self.base.settings()}
