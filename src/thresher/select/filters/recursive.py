"""Recursive filtering: filter, retrain on the kept samples, filter again."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from thresher.errors import InvalidValueError
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.filters.network import NetworkFilter, NetworkOptions
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class RecursiveFilter(NetworkOptions, Filter):
    """Filter, retrain the network on the kept samples, and filter again.

    Applies the network filter `rounds` times, each time to the features of a network that was
    retrained on the samples kept so far: the paper's future work. `drop` is reached in equal
    steps; with 0.1 and two rounds, 5 % of the samples go in each. The score is that of the last
    round that a sample took part in, the map is that of the first. Costs a training run per round
    after the first, and a map per round.

    `thresher select recursive` retrains the run with its own settings, and keeps the rounds in
    S.rounds/, so that an interrupted command resumes.

    Examples:
        >>> features, labels = np.eye(40)[:, :8], np.arange(40) % 2
        >>> again = RecursiveFilter(drop=0.1, rounds=2, reduce="pca")
        >>> again.fit(features, labels, retrain=lambda round, keep: features).keep_.shape
        (40,)
    """

    name: ClassVar[str] = "recursive"
    needs: ClassVar[tuple[Need, ...]] = ("features", "training")

    rounds: int = option(2, ge=1)
    """Number of times to filter."""

    def _fit(self, inputs: FilterInputs) -> None:
        self._check_radius()
        n = len(inputs)
        keep = np.ones(n, bool)
        score, cluster = np.zeros(n, np.float32), np.full(n, -2, np.int32)
        points = np.full((n, 2), np.nan, np.float32)
        reason = [""] * n
        history: list[dict[str, Any]] = []
        own = {field.name: getattr(self, field.name) for field in fields(NetworkOptions)}
        for round_ in range(self.rounds):
            rows = np.flatnonzero(keep)
            features = inputs.features
            if round_ > 0 or features is None:
                if inputs.retrain is None:
                    raise InvalidValueError(
                        "retrain is required to filter more than once", "", "retrain"
                    )
                features = inputs.retrain(round_, keep.copy())
            if self.drop is not None:
                # `drop` is a share of all samples; each round sees fewer.
                own["drop"] = self.drop / self.rounds * n / len(rows)
            seen = replace(inputs, features=features, probabilities=None, dynamics={})
            fitted = NetworkFilter(**own).fit_inputs(seen.take(rows))
            assert fitted.cluster_ is not None
            score[rows], cluster[rows] = fitted.score_, fitted.cluster_
            if round_ == 0 and fitted.map_ is not None:
                points = fitted.map_  # of all samples; maps of other networks do not fit it
            for row, kept, why in zip(rows, fitted.keep_, fitted.reason_, strict=True):
                reason[row] = why if kept or not why else f"round {round_ + 1}: {why}"
            keep[rows] = fitted.keep_
            history.append({"kept": int(keep.sum()), **fitted.report_})
            self.warnings_ += [w for w in fitted.warnings_ if w not in self.warnings_]
            self.seconds_[f"round {round_ + 1}"] = fitted.seconds_["total"]
        self.keep_, self.score_, self.reason_ = keep, score, reason
        self.cluster_, self.map_ = cluster, points
        self.report_.update(
            {key: history[-1][key] for key in ("kl", "eps", "min_samples")},
            rounds=[{k: v for k, v in one.items() if k != "curve"} for one in history],
        )
