"""Mislabelled samples by confident learning (Northcutt et al. 2021)."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

import numpy as np

from thresher.errors import ThresherError
from thresher.select.filters.base import Filter
from thresher.select.pca import fit_pca
from thresher.select.samples import Samples


@dataclass
class LabelErrorsFilter(Filter):
    """Drops samples that another class claims with more confidence than it claims its own.

    Probabilities must come from a model that has not fitted the label in question. By default
    they are made here, by a linear probe on the features, cross-validated; `own` takes the
    network's, which suits a network that was not trained on these samples.
    """

    name: ClassVar[str] = "label-errors"

    probabilities: Literal["probe", "own"] = "probe"
    """Whose class probabilities: a cross-validated linear probe's, or the network's own."""
    engine: Literal["auto", "cleanlab", "builtin"] = "auto"
    """auto takes cleanlab where it is installed."""
    folds: int = 5
    components: int = 64
    """Principal components that the probe sees."""
    seed: int = 0

    def _fit(self, samples: Samples) -> None:
        classes, labels = np.unique(samples.labels, return_inverse=True)
        if len(classes) < 2:
            raise ThresherError("one class alone has no label errors", "give at least two classes")
        if self.probabilities == "own":
            if samples.probabilities is None:
                raise ThresherError(
                    "these features come without probabilities", "use `--probabilities probe`"
                )
            p = np.asarray(samples.probabilities, np.float64)[:, classes]
            p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-12)
        else:
            p = self._probe(samples.need_features(), labels)
        engine = self.engine
        if engine == "auto":
            engine = "cleanlab" if find_spec("cleanlab") else "builtin"
        issue = _cleanlab(labels, p) if engine == "cleanlab" else confident_issues(labels, p)
        self.keep_ = ~issue
        self.score_ = (1 - p[np.arange(len(p)), labels]).astype(np.float32)
        better = classes[p.argmax(axis=1)]
        self.reason_ = [
            f"label {samples.class_name(int(given))}, likely {samples.class_name(int(other))}"
            if bad
            else ""
            for given, other, bad in zip(samples.labels, better, issue, strict=True)
        ]
        self.report_.update(engine=engine, probabilities=self.probabilities)

    def _probe(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Out-of-fold probabilities (n, classes) of a logistic regression on the features."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict

        folds = min(self.folds, int(np.bincount(labels).min()))
        if folds < 2:
            raise ThresherError(
                "a class has a single sample, so no fold can leave it out",
                "use `--probabilities own`",
            )
        x = fit_pca(features, self.components, self.seed).project(features).numpy()
        x /= max(float(x[:, 0].std()), 1e-12)
        return cross_val_predict(
            LogisticRegression(max_iter=300),
            x.astype(np.float64),
            labels,
            cv=StratifiedKFold(folds, shuffle=True, random_state=self.seed),
            method="predict_proba",
        )


def confident_issues(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    """(n,) bool: samples off the diagonal of the confident joint.

    A sample counts for class j when p_j reaches the mean p_j of the samples labelled j; of several
    such classes the most probable one. Labels (n,) are 0 … classes-1, p is (n, classes).
    """
    least = np.array([p[labels == j, j].mean() for j in range(p.shape[1])])
    claimed = np.where(p >= least, p, -1.0)
    best = claimed.argmax(axis=1)
    return (claimed.max(axis=1) >= 0) & (best != labels)


def _cleanlab(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise ThresherError(
            "cleanlab is not installed", "`pip install cleanlab`, or use `--engine builtin`"
        ) from None
    return np.asarray(find_label_issues(labels, p, n_jobs=1), bool)
