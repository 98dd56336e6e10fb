"""Label errors: confident learning as cleanlab does it, and the classifier behind it."""

import numpy as np
import pytest
import torch
from planted_classes import CLASSES, N, planted, precision, recall

from thresher.errors import ThresherError
from thresher.select import linear_probe
from thresher.select.filters import label_errors
from thresher.select.filters.label_errors import (
    LabelErrorsFilter,
    OwnProbabilities,
    confident_issues,
    stratified_folds,
)
from thresher.select.inputs import FilterInputs


@pytest.fixture(scope="module")
def data() -> tuple[FilterInputs, np.ndarray, np.ndarray]:
    return planted()


@pytest.mark.parametrize("engine", ["cleanlab", "builtin"])
def test_label_errors_are_found(
    data: tuple[FilterInputs, np.ndarray, np.ndarray], engine: str
) -> None:
    samples, flipped, _ = data
    found = LabelErrorsFilter(engine=engine).fit_inputs(samples)  # type: ignore[arg-type]
    assert precision(found, flipped) > 0.9
    assert recall(found, flipped) > 0.8
    row = int(np.flatnonzero(~found.keep_)[0])
    given = samples.class_name(int(samples.labels[row]))
    assert found.reason_[row].startswith(f"label {given}, likely class")
    assert found.suggested_ is not None
    assert found.reason_[row].endswith(samples.class_name(int(found.suggested_[row])))
    assert (found.suggested_[found.keep_] == -1).all()


def test_confident_joint_by_hand() -> None:
    p = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9], [0.85, 0.15]])
    labels = np.array([0, 0, 1, 1, 1])
    # Mean own confidence: 0.8 in class 0, (0.8 + 0.9 + 0.15) / 3 = 0.617 in class 1.
    own, table = p[np.arange(5), labels], OwnProbabilities(p, np.arange(2))
    np.testing.assert_array_equal(confident_issues(labels, own, table), [False] * 4 + [True])


@pytest.mark.parametrize("label", [0, 1])
def test_an_equally_probable_class_does_not_make_a_label_wrong(label: int) -> None:
    """The lower of two equal classes won, so that the order of the classes decided."""
    labels = np.array([label, 1 - label])
    table = OwnProbabilities(np.full((2, 2), 0.5), np.arange(2))
    assert not confident_issues(labels, np.full(2, 0.5), table).any()


def test_the_mean_of_equal_confidences_is_reached_by_each() -> None:
    """(0.8 + 0.8 + 0.8) / 3 is rounded to above 0.8, and no sample reached it."""
    labels = np.array([0, 0, 0, 1])
    table = OwnProbabilities(np.array([[0.8, 0.2]] * 4), np.arange(2))
    own = table.rows(0, 4)[np.arange(4), labels]
    np.testing.assert_array_equal(confident_issues(labels, own, table), [False] * 3 + [True])


def test_the_built_in_engine_marks_what_cleanlabs_confident_learning_marks() -> None:
    from cleanlab.filter import find_label_issues

    random = np.random.default_rng(1)
    p = random.dirichlet([3, 1, 0.5, 0.5], 300)
    labels = np.array([random.choice(4, p=row) for row in p])
    own = LabelErrorsFilter(probabilities="own", engine="builtin")
    found = own.fit(None, labels, probabilities=p, classes=list("abcd"))
    theirs = find_label_issues(labels, p, filter_by="confident_learning", n_jobs=1)
    np.testing.assert_array_equal(~found.keep_, theirs)
    assert found.suggested_ is not None
    assert (found.suggested_[~found.keep_] >= 0).all()  # never "label a, likely a"


@pytest.mark.filterwarnings("ignore:The least populated class")
def test_the_folds_are_those_of_scikit_learn() -> None:
    from sklearn.model_selection import StratifiedKFold

    random = np.random.default_rng(0)
    for seed in range(30):
        classes, folds = random.integers(2, 9), int(random.integers(2, 7))
        common = random.integers(0, classes, 100) * (random.random(100) < random.random())
        labels = random.permutation([*range(classes), *range(classes), *common])
        expected = np.empty(len(labels), np.int64)
        cut = StratifiedKFold(folds, shuffle=True, random_state=seed)
        for number, (_, members) in enumerate(cut.split(labels, labels)):
            expected[members] = number
        np.testing.assert_array_equal(stratified_folds(labels, folds, seed), expected)


@pytest.mark.slow
def test_label_errors_do_not_depend_on_the_blocks(
    data: tuple[FilterInputs, np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, _, _ = data
    whole = LabelErrorsFilter(engine="builtin").fit_inputs(samples)
    monkeypatch.setattr(label_errors, "BLOCK", 7 * CLASSES)
    monkeypatch.setattr(linear_probe, "BLOCK_BYTES", 4 * CLASSES * 11)
    parts = LabelErrorsFilter(engine="builtin").fit_inputs(samples)
    np.testing.assert_allclose(parts.score_, whole.score_, atol=2e-3)
    assert (parts.keep_ != whole.keep_).sum() <= 1


def test_the_probe_has_the_bits_of_torchs_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    x = torch.from_numpy(random.normal(size=(200, 6)).astype(np.float32))
    labels, fold = random.integers(0, 3, 200), np.arange(200) % 2
    ours = linear_probe.fit_probe(x, labels, fold).weights
    monkeypatch.setattr(linear_probe, "LBFGS", torch.optim.LBFGS)
    assert torch.equal(ours, linear_probe.fit_probe(x, labels, fold).weights)


def test_the_probe_is_the_logistic_regression_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    labels = random.integers(0, 5, 600)
    x = (random.standard_normal((600, 8)) + np.eye(5, 8)[labels]).astype(np.float32)
    fold = np.arange(600) % 3
    probe = linear_probe.fit_probe(torch.from_numpy(x), labels, fold)
    assert (len(probe), probe.classes) == (600, 5)
    for number in range(3):
        seen = fold != number
        theirs = LogisticRegression(max_iter=1000, tol=1e-6).fit(x[seen], labels[seen])
        ours = probe.rows(0, 600)[~seen]
        np.testing.assert_allclose(ours, theirs.predict_proba(x[~seen]), atol=2e-3)


def test_own_probabilities_are_used(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples, flipped, _ = data
    p = np.full((N, CLASSES), 0.02, np.float32)
    likely = np.where(flipped, (samples.labels + 1) % CLASSES, samples.labels)
    p[np.arange(N), likely] = 0.94
    own = LabelErrorsFilter(probabilities="own", engine="builtin").fit(
        None, samples.labels, probabilities=p
    )
    np.testing.assert_array_equal(~own.keep_, flipped)
    with pytest.raises(ThresherError, match="without probabilities"):
        LabelErrorsFilter(probabilities="own").fit_inputs(samples)


@pytest.mark.parametrize("engine", ["cleanlab", "builtin"])
@pytest.mark.parametrize("row", [[2.0, -1.0], [0.5, np.nan], [np.inf, 0.0], [3.0, 1.0]])
def test_logits_and_nan_are_no_probabilities(row: list[float], engine: str) -> None:
    """The built-in engine marked other samples by them; cleanlab's ended with a traceback."""
    own = LabelErrorsFilter(probabilities="own", engine=engine)  # type: ignore[arg-type]
    p = np.array([[0.9, 0.1], [0.8, 0.2], row, [0.1, 0.9]])
    with pytest.raises(
        ThresherError, match=r'must be in \[0, 1\], but those of sample "2" are not'
    ):
        own.fit(None, [0, 0, 1, 1], probabilities=p)


@pytest.mark.parametrize("labels", [[-1, 0, 1], [1, 2, 3]])
def test_labels_must_be_columns_of_the_probabilities(labels: list[int]) -> None:
    own = LabelErrorsFilter(probabilities="own", engine="builtin")
    with pytest.raises(ThresherError, match="a column for each label"):
        own.fit(None, labels, probabilities=np.full((3, 3), 1 / 3))
