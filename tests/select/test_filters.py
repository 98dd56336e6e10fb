"""Filters find what was planted, drop what they say, and choose the same twice."""

from dataclasses import replace

import numpy as np
import pytest
from planted_classes import CLASSES, N, planted, precision, recall

from thresher.data.overrides import Override
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.select.filters.combine import IntersectionFilter, UnionFilter, VoteFilter
from thresher.select.filters.dynamics import EL2NFilter, ForgettingFilter
from thresher.select.filters.grid import GridFilter
from thresher.select.filters.near_duplicates import NearDuplicatesFilter
from thresher.select.filters.network import NetworkFilter
from thresher.select.filters.random import RandomFilter
from thresher.select.filters.recursive import RecursiveFilter
from thresher.select.filters.registry import load_filter
from thresher.select.inputs import FilterInputs


@pytest.fixture(scope="module")
def data() -> tuple[FilterInputs, np.ndarray, np.ndarray]:
    return planted()


@pytest.mark.slow
def test_network_finds_flipped_labels(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples, flipped, _ = data
    found = NetworkFilter(drop=0.05, device="cpu").fit_inputs(samples)
    assert abs((~found.keep_).mean() - 0.05) <= 0.001
    assert precision(found, flipped) > 0.6
    assert found.map_ is not None
    assert found.cluster_ is not None
    np.testing.assert_array_equal(found.cluster_ == -1, ~found.keep_)
    np.testing.assert_array_equal(found.score_ > 1, ~found.keep_)
    assert all(
        why.startswith("noise in class") == dropped
        for why, dropped in zip(found.reason_, ~found.keep_, strict=True)
    )
    curve = found.report_["curve"]
    assert curve["share"][-1] == 0
    at = np.searchsorted(curve["eps"], found.report_["eps"])
    assert abs(curve["share"][at] - 0.05) < 0.02


@pytest.mark.parametrize("reduce", ["pca", "none"])
def test_network_clusters_without_a_map(
    data: tuple[FilterInputs, np.ndarray, np.ndarray], reduce: str
) -> None:
    samples, flipped, _ = data
    found = NetworkFilter(drop=0.05, reduce=reduce, components=5, device="cpu").fit_inputs(samples)  # type: ignore[arg-type]
    assert precision(found, flipped) > 0.6
    assert found.map_ is None


def test_network_by_the_knee_and_by_hdbscan(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    samples, flipped, _ = data
    for one in (NetworkFilter(reduce="pca", components=3), NetworkFilter(eps="auto", reduce="pca")):
        found = one.fit_inputs(samples)
        assert set(found.report_["eps"]) == {f"class{c}" for c in range(CLASSES)}
        assert recall(found, flipped) > 0.8
    found = NetworkFilter(cluster="hdbscan", reduce="pca", components=3, min_cluster_size=30)
    assert recall(found.fit_inputs(samples), flipped) > 0.8


def test_small_classes_are_kept_whole_with_a_warning(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    samples, _, _ = data
    labels = samples.labels.copy()
    labels[:3] = 4
    few = replace(samples, labels=labels, classes=[*samples.classes, "rare"])
    found = NetworkFilter(drop=0.2, reduce="pca").fit_inputs(few)
    assert found.keep_[:3].all()
    assert "class rare has fewer than 5 samples and is kept whole" in found.warnings_
    assert found.reason_[0].startswith("class kept whole")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"eps": 1.0, "drop": 0.1}, "eps and `drop` exclude each other"),
        ({"eps": -1.0}, "eps must be greater than 0, got -1.0"),
        ({"drop": 1.0}, r"drop must be in \[0, 1\), got 1.0"),
        ({"cluster": "hdbscan", "drop": 0.1}, "neither `eps` nor `drop`"),
        ({"min_samples": 0, "reduce": "none"}, "min_samples must be at least 1, got 0"),
    ],
)
def test_network_refuses(
    data: tuple[FilterInputs, np.ndarray, np.ndarray], settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ThresherError, match=sentence):
        NetworkFilter(**settings).fit_inputs(data[0])  # type: ignore[arg-type]


def test_random_is_seeded_and_exact(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples = data[0]
    a, b = RandomFilter(drop=0.1).fit_inputs(samples), RandomFilter(drop=0.1).fit_inputs(samples)
    c = RandomFilter(drop=0.1, seed=1).fit_inputs(samples)
    np.testing.assert_array_equal(a.keep_, b.keep_)
    assert (~a.keep_).sum() == (~c.keep_).sum() == 60
    assert not np.array_equal(a.keep_, c.keep_)
    stratified = RandomFilter(drop=0.1, per_class=True).fit_inputs(samples)
    for label in range(CLASSES):
        here = samples.labels == label
        assert abs((~stratified.keep_[here]).sum() - 0.1 * here.sum()) < 1
    assert (~stratified.keep_).sum() == 60


@pytest.mark.slow
def test_grid_thins_crowded_cells(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples = data[0]
    found = GridFilter(drop=0.3, cells=6, iterations=100, device="cpu").fit_inputs(samples)
    assert abs((~found.keep_).mean() - 0.3) < 0.01
    cell = found.cluster_
    assert cell is not None
    for label in range(CLASSES):
        here = samples.labels == label
        before = np.bincount(cell[here])
        after = np.bincount(cell[here & found.keep_], minlength=len(before))
        cap = after.max()
        # Cells under the cap lose nothing (one rank is shared by the cells at the cap).
        assert (after[(before > 0) & (before < cap)] == before[(before > 0) & (before < cap)]).all()
        assert (after[before >= cap] >= cap - 1).all()


@pytest.mark.slow
def test_grid_can_drop_sparse_cells(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples = data[0]
    crowded = GridFilter(drop=0.3, cells=6, keep="dense", iterations=100, device="cpu")
    found = crowded.fit_inputs(samples)
    assert found.cluster_ is not None
    for label in range(CLASSES):
        here = samples.labels == label
        crowd = np.bincount(found.cluster_[here], minlength=found.cluster_.max() + 1)
        own, kept = crowd[found.cluster_[here]], found.keep_[here]
        assert (~kept).sum() == round(0.3 * here.sum())
        assert own[~kept].max() <= own[kept].min(), "every kept cell is at least as crowded"
    assert found.reason_[int(np.flatnonzero(~found.keep_)[0])].endswith(" sparse")


def test_el2n_is_the_mean_of_the_runs_that_saw_a_sample() -> None:
    runs = [{"el2n": np.array(e)} for e in ([0.1, 0.9, 0.2, np.nan], [0.7, 0.1, np.nan, np.nan])]
    fitted = EL2NFilter(drop=0.25).fit(None, [0] * 4, dynamics=runs[0], other_dynamics=runs[1:])
    np.testing.assert_allclose(fitted.score_[:3], [0.4, 0.5, 0.2], atol=1e-6)
    assert fitted.keep_.tolist() == [True, False, True, True]
    assert fitted.report_["runs"] == 2


def test_el2n_and_forgetting_take_either_end_and_keep_the_unseen() -> None:
    n = 100
    labels = np.zeros(n, int)
    dynamics = {
        "el2n": np.where(np.arange(n) < 90, np.arange(n) / 100.0, np.nan),
        "forgetting": np.where(np.arange(n) < 90, np.arange(n) % 3, np.nan),
        "learned_epoch": np.where(np.arange(n) == 7, -1, 2),
        "loss": np.where(np.arange(n) < 90, np.linspace(0, 5, n), np.nan),
    }
    hard = EL2NFilter(drop=0.1).fit(None, labels, dynamics=dynamics)
    np.testing.assert_array_equal(np.flatnonzero(~hard.keep_), np.arange(80, 90))
    easy = EL2NFilter(drop=0.1, side="easy").fit(None, labels, dynamics=dynamics)
    np.testing.assert_array_equal(np.flatnonzero(~easy.keep_), np.arange(10))
    assert (hard.reason_[89], easy.reason_[9]) == ("EL2N 0.890", "EL2N 0.090")
    assert hard.warnings_ == [
        "10 samples were seen too rarely in that run's training to be judged and are kept"
    ]
    forgot = ForgettingFilter(drop=0.05).fit(None, labels, dynamics=dynamics)
    assert not forgot.keep_[7], "never learned is worst"
    assert set(np.flatnonzero(~forgot.keep_)) == {7, 80, 83, 86, 89}
    assert forgot.report_["never_learned"] == 1
    assert (forgot.reason_[7], forgot.reason_[89]) == ("never learned", "forgotten 2 times")


def test_near_duplicates_keep_the_first(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples, _, copies = data
    found = NearDuplicatesFilter(similarity=0.9999).fit_inputs(samples)
    np.testing.assert_array_equal(~found.keep_, copies)
    assert found.reason_[-1].startswith("like s0011 (cosine 1.0")
    links = found.copies_
    assert links is not None
    assert links.ids == [samples.ids[row] for row in np.flatnonzero(copies).tolist()]
    assert (links.others[-1], links.measure) == ("s0011", "cosine of the features")
    assert links.similarity.min() >= 0.9999
    kept = {id for id, keep in zip(samples.ids, found.keep_, strict=True) if keep}
    assert set(links.others) <= kept
    loose = NearDuplicatesFilter(similarity=0.9).fit_inputs(samples)
    assert (~loose.keep_).sum() > 100
    for label in range(CLASSES):
        assert loose.keep_[np.flatnonzero(samples.labels == label)[0]]


def test_near_duplicates_find_every_exact_copy_and_name_its_own_cosine() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 57)).astype(np.float32)
    x[20:] = 3 * x[:20]
    exact = NearDuplicatesFilter(similarity=1, centre=False).fit(x, [0] * 40)
    np.testing.assert_array_equal(exact.keep_, np.arange(40) < 20)
    # A chain: the third is more like the second, which is dropped, than like the first.
    chain = np.array([[1, 0], [np.cos(0.1), np.sin(0.1)], [np.cos(0.12), np.sin(0.12)]])
    found = NearDuplicatesFilter(similarity=0.99, centre=False).fit(chain, [0, 0, 0])
    assert found.reason_[1:] == ["like 0 (cosine 0.9950)", "like 0 (cosine 0.9928)"]


@pytest.mark.parametrize(
    ("value", "centre"), [(0.0, False), (0.1, False), (0.0, True), (0.1, True)]
)
def test_equal_features_are_near_duplicates_of_whatever_length(value: float, centre: bool) -> None:
    labels = np.array([0, 0, 0, 1, 1])
    fitted = NearDuplicatesFilter(centre=centre).fit(np.full((5, 3), value), labels)
    assert fitted.keep_.tolist() == [True, False, False, True, False]
    np.testing.assert_allclose(fitted.score_, [-1, 1, 1, -1, 1], atol=1e-6)
    assert "check the network" in fitted.warnings_[0]
    # No other sample is a copy of those without a length.
    x = np.array([[0, 0], [0, 0], [1, 0], [0, 1], [1, 1e-6]])
    some = NearDuplicatesFilter(centre=False).fit(x, np.zeros(5, int))
    assert (some.keep_.tolist(), some.warnings_) == ([True, False, True, True, False], [])


def as_selection(samples: FilterInputs, dropped: list[int], name: str) -> Selection:
    keep = np.ones(len(samples), bool)
    keep[dropped] = False
    return Selection(
        list(samples.ids), samples.labels, keep, np.zeros(len(keep)), [""] * len(keep), "f",
        meta={"method": name},
    )  # fmt: skip


def test_a_control_of_other_samples_is_refused(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    """Without `ids`, rows are numbered, and nothing would be dropped."""
    samples = data[0]
    like = as_selection(samples, [1, 2, 3], "s")
    control = RandomFilter().fit(None, samples.labels, ids=samples.ids, like=like)
    assert (~control.keep_).sum() == 3
    with pytest.raises(ThresherError, match="like drops only samples that are not among these"):
        RandomFilter().fit(None, samples.labels, like=like)


def test_combining(data: tuple[FilterInputs, np.ndarray, np.ndarray]) -> None:
    samples = data[0]
    three = [
        as_selection(samples, [1, 2, 3], "a"),
        as_selection(samples, [2, 3, 4], "b"),
        as_selection(samples, [3, 4, 5], "c"),
    ]
    inputs = replace(samples, selections=three)
    fitted = [f.fit_inputs(inputs) for f in (UnionFilter(), IntersectionFilter(), VoteFilter())]
    dropped = {f.name: np.flatnonzero(~f.keep_).tolist() for f in fitted}
    assert dropped == {"union": [1, 2, 3, 4, 5], "intersection": [3], "vote": [2, 3, 4]}
    assert fitted[2].reason_[2] == "a, b"
    assert VoteFilter(quorum=0.7).fit_inputs(inputs).keep_.sum() == N - 1
    # The order of a selection's rows does not matter: samples go by id.
    turned = as_selection(samples, [N - 2], "d")
    turned.ids = turned.ids[::-1]
    again = IntersectionFilter().fit(
        None, samples.labels, ids=samples.ids, selections=[three[0], turned]
    )
    assert np.flatnonzero(~again.keep_).tolist() == [1]
    with pytest.raises(ThresherError, match="two or more, got 1"):
        UnionFilter().fit_inputs(replace(samples, selections=three[:1]))
    with pytest.raises(ThresherError, match='has no sample "0"'):
        UnionFilter().fit(None, samples.labels, selections=three)


def test_decisions_that_another_selection_overrules_are_mentioned(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    samples = data[0]
    two = [as_selection(samples, [0], "a"), as_selection(samples, [1, 2], "b")]
    ids = samples.ids
    first_kept = Override([ids[0], ids[1], ids[7]], True)
    two[0].apply_overrides([first_kept, Override([ids[3]], True, label=4)])
    two[1].apply_overrides([Override([ids[3]], True, label=5), Override([ids[8]], False)])
    fitted = UnionFilter().fit_inputs(replace(samples, selections=two))
    assert np.flatnonzero(~fitted.keep_).tolist() == [1, 2, 8]
    first, second = fitted.warnings_
    assert first.startswith("1 sample is kept or dropped against decisions by people")
    assert second.startswith("1 sample has different new labels")


def test_files_name_the_selections_they_were_read_from(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    from pathlib import Path

    samples = data[0]
    two = [as_selection(samples, [1], "a"), as_selection(samples, [1], "b")]
    for selection, name in zip(two, ("first", "second"), strict=True):
        selection.path = Path(f"{name}.parquet")
    inputs = replace(samples, selections=two)
    assert UnionFilter().fit_inputs(inputs).reason_[1] == "first, second"
    # In a study every file is called selection.parquet.
    for selection in two:
        selection.path = Path("step/selection.parquet")
    assert UnionFilter().fit_inputs(inputs).reason_[1] == "a, b"


def test_recursive_filters_what_is_left_with_new_features(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    samples, flipped, _ = data
    asked = []

    def retrain(round_: int, keep: np.ndarray) -> np.ndarray:
        asked.append((round_, int(keep.sum())))
        return planted(seed=0)[0].need_features()[:, ::-1]

    recursive = RecursiveFilter(drop=0.06, reduce="pca", components=5, rounds=3)
    found = recursive.fit_inputs(replace(samples, retrain=retrain))
    assert (~found.keep_).sum() == pytest.approx(36, abs=1)
    assert asked == [(1, 588), (2, 576)]
    assert precision(found, flipped) > 0.6
    rounds = {
        why.split(":")[0] for why, keep in zip(found.reason_, found.keep_, strict=True) if not keep
    }
    assert rounds == {"round 1", "round 2", "round 3"}


def test_the_map_of_recursive_is_that_of_its_first_round(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    """Points of several maps were drawn as if they were of one."""
    samples = replace(data[0], retrain=lambda *_: planted(seed=1)[0].need_features())
    first = NetworkFilter(drop=0.03, reduce="pca", components=2).fit_inputs(samples)
    found = RecursiveFilter(drop=0.06, rounds=2, reduce="pca", components=2).fit_inputs(samples)
    assert found.map_ is not None
    assert first.map_ is not None
    np.testing.assert_array_equal(found.map_, first.map_)


def test_filters_say_what_they_lack() -> None:
    labels = np.zeros(2, int)
    with pytest.raises(ThresherError, match="needs features; give `features` or `run`"):
        NetworkFilter().fit(None, labels)
    with pytest.raises(ThresherError, match="`record_dynamics`"):
        EL2NFilter().fit(None, labels)
    with pytest.raises(ThresherError, match="retrain is required"):
        RecursiveFilter().fit(None, labels)
    with pytest.raises(ThresherError, match="no training samples"):
        RandomFilter().fit(None, [])
    with pytest.raises(ThresherError, match="features has 3 rows for 2 labels"):
        NetworkFilter().fit(np.zeros((3, 2)), labels)
    with pytest.raises(ThresherError, match=r"labels must be \(n,\) integers, got float64"):
        RandomFilter().fit(None, [0.5, 1.5])


def test_a_second_fit_leaves_nothing_of_the_first(
    data: tuple[FilterInputs, np.ndarray, np.ndarray],
) -> None:
    samples = data[0]
    network = NetworkFilter(drop=0.05, reduce="pca", components=2).fit_inputs(samples)
    assert network.map_ is not None
    network.set_params(components=3).fit_inputs(samples)
    assert network.map_ is None


def test_a_class_that_is_dropped_as_a_whole_is_mentioned() -> None:
    def warnings(drop: float, labels: list[int]) -> list[str]:
        error = {"el2n": np.array([1.0, 0.9, 0.4, 0.3, 0.2, 0.1])}
        return EL2NFilter(drop=drop).fit(None, labels, dynamics=error).warnings_

    assert warnings(1 / 3, [0, 1, 0, 1, 2, 2]) == []
    assert warnings(1 / 3, [0, 0, 1, 1, 2, 2]) == ["no sample of class 0 is kept"]
    assert warnings(2 / 3, [0, 0, 1, 1, 2, 2]) == ["no sample of 2 classes is kept, such as 0"]


@pytest.mark.parametrize("name", ["knn", "near-duplicates", "moderate", "prototypes", "outliers"])
def test_features_that_are_not_finite_are_refused(name: str) -> None:
    features = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    for bad in (np.nan, np.inf):
        features[7, 2] = bad
        with pytest.raises(ThresherError, match='must be finite, but those of sample "7" are not'):
            load_filter(name)().fit(features, np.arange(20) % 2)


@pytest.mark.parametrize(
    "name", ["network", "grid", "knn", "near-duplicates", "moderate", "prototypes", "outliers"]
)
def test_features_whose_squares_are_no_numbers_are_refused(name: str) -> None:
    """Maps were NaN or arbitrary, and other filters compared zeros or infinities."""
    labels = np.arange(40) % 2
    features = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    features[7, 2] = -9
    for factor in (1e18, 1e30):
        with pytest.raises(ThresherError, match=r'1e\+12 in size, but those of sample "7" are up'):
            load_filter(name)().fit(features * np.float32(factor), labels)
    with pytest.raises(ThresherError, match="size, got 9e-15; scale them"):
        load_filter(name)().fit(features * np.float32(1e-15), labels)


@pytest.mark.parametrize("name", ["knn", "near-duplicates", "moderate", "label-errors", "outliers"])
def test_features_that_are_not_vectors_are_refused(name: str) -> None:
    for features in (np.zeros((6, 2, 4)), np.zeros(6), np.full((6, 2), None)):
        with pytest.raises(ThresherError, match=r"features must be \(n, d\) numbers, got"):
            load_filter(name)().fit(features, [0, 0, 0, 1, 1, 1])
