"""Mislabelled samples, by confident learning."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Literal

import numpy as np

from thresher.errors import InvalidValueError, MissingDependencyError
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class LabelErrorsFilter(Filter):
    """Drop samples that confident learning considers mislabelled.

    A sample is mislabelled if another class claims it with at least the mean confidence of that
    class's own samples (Northcutt et al., "Confident Learning", 2021). The probabilities must come
    from a model that was not fitted to the label in question: by default from a cross-validated
    logistic regression on the principal components of the features, not from the network, which
    is sure of labels it was trained on. Costs `folds` fits of the regression.

    Examples:
        >>> p = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.9, 0.1]]
        >>> own = LabelErrorsFilter(probabilities="own", engine="builtin")
        >>> own.fit(None, [0, 0, 1, 1], probabilities=p).keep_.tolist()
        [True, True, True, False]
    """

    name: ClassVar[str] = "label-errors"
    needs: ClassVar[tuple[Need, ...]] = ("features",)

    probabilities: Literal["probe", "own"] = "probe"
    """Class probabilities to use: a cross-validated linear probe's, or the network's own."""
    engine: Literal["auto", "cleanlab", "builtin"] = "auto"
    """Implementation; auto uses cleanlab if it is installed."""
    folds: int = option(5, ge=2)
    """Folds of the probe's cross-validation."""
    components: int = option(64, ge=1)
    """Principal components that the probe uses."""
    seed: int = option(0, ge=0)
    """Seed of the folds."""

    def _fit(self, inputs: FilterInputs) -> None:
        classes, labels = np.unique(inputs.labels, return_inverse=True)
        if len(classes) < 2:
            raise InvalidValueError("labels must hold at least two classes, got one", "", "labels")
        if self.probabilities == "own":
            if inputs.probabilities is None:
                raise InvalidValueError(
                    "these features come without probabilities", "use `probabilities` probe"
                )
            p = np.asarray(inputs.probabilities, np.float64)[:, classes]
            p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-12)
        else:
            p = self._probe(inputs.need_features(), labels)
        engine = self.engine
        if engine == "auto":
            engine = "cleanlab" if find_spec("cleanlab") else "builtin"
        issue = _cleanlab(labels, p) if engine == "cleanlab" else confident_issues(labels, p)
        self.keep_ = ~issue
        self.score_ = (1 - p[np.arange(len(p)), labels]).astype(np.float32)
        likely = classes[p.argmax(axis=1)]
        self.reason_ = [
            f"label {inputs.class_name(int(given))}, likely {inputs.class_name(int(other))}"
            if bad
            else ""
            for given, other, bad in zip(inputs.labels, likely, issue, strict=True)
        ]
        agreement = float((p.argmax(axis=1) == labels).mean())
        self.report_.update(
            engine=engine, probabilities=self.probabilities, agreement=round(agreement, 4)
        )

    def _probe(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return out-of-fold probabilities (n, classes) of a logistic regression."""
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold, cross_val_predict

        from thresher.select.pca import fit_pca

        folds = min(self.folds, int(np.bincount(labels).min()))
        if folds < 2:
            raise InvalidValueError(
                "a class with one sample cannot be cross-validated", "use `probabilities` own"
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
    """Return which samples are off the diagonal of the confident joint, (n,) bool.

    A sample counts for class j if p_j is at least the mean p_j of the samples labelled j; if for
    several classes, then for the most probable one. `labels` (n,) are 0 … classes-1.
    """
    least = np.array([p[labels == j, j].mean() for j in range(p.shape[1])])
    claimed = np.where(p >= least, p, -1.0)
    best = claimed.argmax(axis=1)
    return (claimed.max(axis=1) >= 0) & (best != labels)


def _cleanlab(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise MissingDependencyError(
            "cleanlab is not installed", "`pip install cleanlab`, or use `engine` builtin"
        ) from None
    return np.asarray(find_label_issues(labels, p, n_jobs=1), bool)
