"""Mislabelled samples, by confident learning."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

import numpy as np

from thresher.environment import choose_device
from thresher.errors import InvalidValueError, MissingDependencyError
from thresher.options import option
from thresher.select.filters.base import Filter
from thresher.select.inputs import FilterInputs, Need

if TYPE_CHECKING:
    from thresher.select.linear_probe import LinearProbe

BLOCK = 1 << 22
"""Probabilities that are looked at together."""
ROUNDING = 1e-3
"""By which a probability may be above 1, as in half precision."""
MEAN_ROUNDING = 1e-9
CLEANLAB_UP_TO = 100_000_000
"""Samples times classes up to which auto uses cleanlab, which needs the whole table in memory."""


class ProbabilityTable(Protocol):
    """Class probabilities of samples, read in blocks."""

    @property
    def classes(self) -> int: ...

    def __len__(self) -> int: ...

    def rows(self, begin: int, end: int) -> np.ndarray:
        """Return (end - begin, classes) of them."""


@dataclass(frozen=True)
class OwnProbabilities:
    """Those that a network computed; only some of its classes count."""

    p: np.ndarray
    """(n, all classes)."""
    used: np.ndarray
    """(classes,): their columns."""

    @property
    def classes(self) -> int:
        return len(self.used)

    def __len__(self) -> int:
        return len(self.p)

    def rows(self, begin: int, end: int) -> np.ndarray:
        p = np.asarray(self.p[begin:end], np.float64)[:, self.used]
        return p / np.maximum(p.sum(axis=1, keepdims=True), 1e-12)


@dataclass(kw_only=True)
class LabelErrorsFilter(Filter):
    """Drop samples that confident learning considers mislabelled.

    A sample is mislabelled if another class is more probable than its own, and one claims it with
    at least the mean confidence of that class's own samples (Northcutt et al., "Confident
    Learning", 2021). The probabilities must come from a model that was not fitted to the label in
    question: by default from a cross-validated logistic regression on the principal components of
    the features, not from the network, which is sure of labels it was trained on. Costs `folds`
    fits of the regression; memory does not grow with the number of classes.

    Examples:
        >>> p = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.9, 0.1]]
        >>> own = LabelErrorsFilter(probabilities="own", engine="builtin")
        >>> own.fit(None, [0, 0, 1, 1], probabilities=p).keep_.tolist()
        [True, True, True, False]
    """

    name: ClassVar[str] = "label-errors"
    needs: ClassVar[tuple[Need, ...]] = ("features",)
    hardness: ClassVar[bool] = True

    probabilities: Literal["probe", "own"] = "probe"
    """Class probabilities to use: a cross-validated linear probe's, or the network's own."""
    engine: Literal["auto", "cleanlab", "builtin"] = "auto"
    """Implementation; auto uses cleanlab if it is installed. builtin drops what the rule above
    marks. cleanlab estimates from it how many labels of each class are wrong, and drops that many,
    which are partly other samples."""
    folds: int = option(5, ge=2, only_with={"probabilities": ("probe",)})
    """Folds of the probe's cross-validation."""
    components: int = option(64, ge=1, only_with={"probabilities": ("probe",)})
    """Principal components that the probe uses."""
    seed: int = option(0, ge=0, only_with={"probabilities": ("probe",)})
    """Seed of the folds."""

    def _fit(self, inputs: FilterInputs) -> None:
        classes, labels = np.unique(inputs.labels, return_inverse=True)
        if len(classes) < 2:
            raise InvalidValueError("labels must hold at least two classes, got one", "", "labels")
        if self.probabilities == "own":
            table: ProbabilityTable = _own_probabilities(inputs, classes)
        else:
            table = self._probe(inputs.need_features(), labels)
        engine = self.engine
        if engine == "auto":
            small = len(table) * table.classes <= CLEANLAB_UP_TO
            engine = "cleanlab" if small and find_spec("cleanlab") else "builtin"
        own, likely = _own_and_likely(labels, table)
        if engine == "cleanlab":
            issue = _cleanlab(labels, table.rows(0, len(table)))
        else:
            issue = confident_issues(labels, own, table)
        self.keep_ = ~issue
        self.score_ = (1 - own).astype(np.float32)
        self.suggested_ = np.where(issue & (likely != labels), classes[likely], -1)
        self.reason_ = [
            f"label {inputs.class_name(int(given))}, likely {inputs.class_name(int(other))}"
            if bad
            else ""
            for given, other, bad in zip(inputs.labels, classes[likely], issue, strict=True)
        ]
        agreement = float((likely == labels).mean())
        self.report_.update(
            engine=engine, probabilities=self.probabilities, agreement=round(agreement, 4)
        )

    def _probe(self, features: np.ndarray, labels: np.ndarray) -> "LinearProbe":
        """Return out-of-fold probabilities of a logistic regression."""
        from thresher.select.linear_probe import fit_probe
        from thresher.select.pca import fit_pca

        counts = np.bincount(labels)
        if counts.min() < 2:
            raise InvalidValueError(
                "a class with one sample cannot be cross-validated", "use `probabilities` own"
            )
        # The samples of a class go to different folds: two are enough for one to be seen.
        folds = min(self.folds, int(counts.max()))
        x = fit_pca(features, self.components, self.seed, choose_device()).project(features)
        x /= max(float(x[:, 0].std()), 1e-12)
        return fit_probe(x, labels, stratified_folds(labels, folds, self.seed))


def _own_probabilities(inputs: FilterInputs, classes: np.ndarray) -> OwnProbabilities:
    """Return the probabilities of `classes`; reads all of them, to refuse logits and nan."""
    if inputs.probabilities is None:
        raise InvalidValueError(
            "these features come without probabilities", "use `probabilities` probe"
        )
    p = np.asarray(inputs.probabilities)
    if p.ndim != 2 or classes[0] < 0 or classes[-1] >= p.shape[1]:
        raise InvalidValueError(
            f"probabilities must have a column for each label from 0 to {classes[-1]}, got "
            f"the shape {p.shape} and the lowest label {classes[0]}",
            "number the classes from 0, as the columns are",
            "probabilities",
        )
    if p.dtype.kind not in "fiub":
        raise InvalidValueError(
            f"probabilities must be numbers, got {p.dtype}", "", "probabilities"
        )
    step = max(1, BLOCK // p.shape[1])
    for begin in range(0, len(p), step):
        block = p[begin : begin + step]
        good = ((block >= 0) & (block <= 1 + ROUNDING)).all(axis=1)
        if not good.all():
            raise InvalidValueError(
                "probabilities must be in [0, 1], but those of sample "
                f'"{inputs.ids[begin + int(good.argmin())]}" are not',
                "pass the softmax of logits",
                "probabilities",
            )
    return OwnProbabilities(p, classes)


def stratified_folds(labels: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each sample, (n,): those of scikit-learn's `StratifiedKFold`, shuffled.

    Importing scikit-learn would take longer than to fit the probe to a small data set.
    """
    classes, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))[inverse]  # classes in order of their first samples
    ordered = np.sort(order)
    counts = [np.bincount(ordered[n::folds], minlength=len(classes)) for n in range(folds)]
    fold = np.empty(len(labels), np.int64)
    generator = np.random.RandomState(seed)
    for number, of_class in enumerate(np.stack(counts, axis=1)):
        members = np.arange(folds).repeat(of_class)
        generator.shuffle(members)
        fold[order == number] = members
    return fold


def _blocks(table: ProbabilityTable) -> Iterator[tuple[slice, np.ndarray]]:
    step = max(1, BLOCK // table.classes)
    for begin in range(0, len(table), step):
        end = min(begin + step, len(table))
        yield slice(begin, end), table.rows(begin, end)


def _own_and_likely(labels: np.ndarray, table: ProbabilityTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of each sample's label, (n,), and its most probable class, (n,)."""
    own, likely = np.empty(len(table)), np.empty(len(table), np.int64)
    for rows, p in _blocks(table):
        own[rows] = p[np.arange(len(p)), labels[rows]]
        likely[rows] = p.argmax(axis=1)
    return own, likely


def confident_issues(labels: np.ndarray, own: np.ndarray, table: ProbabilityTable) -> np.ndarray:
    """Return which samples are off the diagonal of the confident joint, (n,) bool.

    A sample counts for class j if p_j is at least the mean p_j of the samples labelled j; if for
    several classes, then for the most probable one. As in cleanlab, a sample whose label is the
    most probable class of all is not mislabelled. Of equally probable classes its label counts.
    `labels` (n,) are 0 … classes-1, `own` (n,) are the probabilities of the labels.
    """
    counts = np.bincount(labels, minlength=table.classes)
    # The mean of equal probabilities may be rounded up, above each of them.
    least = np.bincount(labels, own, table.classes) / np.maximum(counts, 1) - MEAN_ROUNDING
    issue = np.empty(len(table), bool)
    for rows, p in _blocks(table):
        claimed = np.where(p >= least, p, -1.0)
        at = np.arange(len(p)), labels[rows]
        issue[rows] = (claimed.max(axis=1) > claimed[at]) & (p.max(axis=1) > p[at])
    return issue


def _cleanlab(labels: np.ndarray, p: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise MissingDependencyError(
            "cleanlab is not installed", "`pip install cleanlab`, or use `engine` builtin"
        ) from None
    return np.asarray(find_label_issues(labels, p, n_jobs=1), bool)
