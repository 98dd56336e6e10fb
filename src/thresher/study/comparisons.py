"""Compare the arms of a study pair by pair and say in one sentence how each comparison ends."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from thresher.study import statistics
from thresher.study.definition import ARM
from thresher.study.draws import Groups, shared_draws, varies
from thresher.study.images import ImageSpread, RunBits, image_spread
from thresher.study.pooling import StudyError
from thresher.study.power import DECISION
from thresher.study.primary import Key, NamedComparisons
from thresher.study.sentences import OVERALL, sentence
from thresher.study.statistics import Paired, Verdict
from thresher.study.summaries import CellSummary, describe_cell
from thresher.study.survival import compare_censored
from thresher.study.tasks import Values


@dataclass(frozen=True)
class MetricScale:
    """How to read the numbers of a metric."""

    unit: str
    """Unit, or the metric's name if it has none."""
    margin: float
    """Largest difference that counts as equivalent."""
    higher_is_better: bool = True
    resolution: float = 0.0
    """Smallest step of the metric: 100 / test images for an accuracy in points."""
    censored: bool = False
    """Whether runs without a value are times that were cut off by the end of the run."""
    level: float = DECISION
    """Threshold of the corrected p-values."""


@dataclass(frozen=True)
class ArmComparison:
    """The comparison of two values of an axis, paired by seed."""

    cell: Values
    """Values of the other axes; {} for the comparison of means over all cells."""
    axis: str
    """The compared axis."""
    arm: Any
    """Value of the axis that is judged."""
    baseline: Any
    """Value that it is compared with."""
    verdict: str
    """better, worse, equivalent, excludes the claimed effect, no worse or not enough runs."""
    sentence: str
    """The verdict with its evidence, in words."""
    n: int
    """Number of seeds that both have, or of draws if seeds share draws."""
    difference: float
    """Mean of arm minus baseline; NaN if n is 0."""
    low: float
    """Lower end of the 95 % interval of the difference; infinite if n is below 2."""
    high: float
    adjusted_low: float
    """Lower end of the interval at the level that Holm's correction leaves to this comparison: it
    contains 0 exactly if `p_holm` is not below `level`."""
    adjusted_high: float
    bootstrap_low: float
    """Lower end of the 95 % bootstrap interval, whatever n is."""
    bootstrap_high: float
    sd: float
    """Standard deviation of a difference of two runs (of their means over all cells)."""
    df: float
    """Degrees of freedom of `sd`; of the interval, if it is one of censored times."""
    pooled_cells: int
    """Number of cells that `sd` is pooled over; 0 if it is that of the n differences alone."""
    pooled_arms: int
    """Number of arms that `sd` is pooled over; 0 if it is that of the n differences alone."""
    p: float
    """p-value of the t-test of no difference."""
    p_holm: float
    """The same after Holm's correction."""
    p_equivalent: float
    """p-value of the two one-sided tests of equivalence, after Holm's correction."""
    no_worse: bool
    """Whether arm is shown to be not worse than baseline by the margin or more."""
    images_low: float | None
    """Lower end of the 95 % bootstrap interval over test images, with these runs; None if runs did
    not record which images they predict correctly."""
    images_high: float | None
    p_mcnemar: float | None
    """McNemar's test of one run against one; None for more runs."""
    primary: bool | None
    """Whether the comparison is primary; None if the study names no primary comparisons."""
    claimed: float | None
    """The claimed effect."""
    claimed_excluded: bool | None
    """Whether the runs exclude the claimed effect; None if none is claimed."""
    p_claimed: float | None
    """One-sided p-value of the claimed effect, after Holm's correction for all claims."""
    seeds_needed: int | None
    """Seeds needed to detect a difference as large as the margin; None if unknown. If seeds share
    draws, this and the following numbers count draws of as many seeds as those in `draws`."""
    seeds_needed_range: tuple[int | None, int | None]
    """The same at both ends of the 95 % interval of `sd`."""
    seeds_for_equivalence: int | None
    """Seeds needed to show that equal arms are equivalent; None if unknown."""
    seeds_for_equivalence_range: tuple[int | None, int | None]
    seeds_if_as_seen: int | None
    """Seeds needed to detect a difference as large as the measured one; None if unknown."""
    comparisons: int
    """Number of comparisons that Holm's correction covers."""
    level: float = DECISION
    """Threshold of the corrected p-values."""
    draws: tuple[int, ...] = ()
    """Number of seeds of each draw, if seeds share draws; otherwise empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, and the names that other programs use for some of them."""
        short = {"word": self.verdict, "mean": self.difference, "seeds": self.n}
        return {**asdict(self), **short, "p_adjusted": self.p_holm}


_Cell = tuple[Values, dict[Any, CellSummary]]
"""Values of the other axes, and the summaries by value of the compared axis."""


@dataclass(frozen=True)
class Pairing:
    """Two arms in one cell (`at` is its number), or averaged over all cells (`at` is None)."""

    cell: Values
    at: int | None
    arm: Any
    baseline: Any
    values: np.ndarray
    """(n, 2) values of arm and baseline, by shared seed, or by draw if seeds share draws."""
    draws: Groups | None
    """The seeds of each row, if rows are draws that several seeds share."""
    drawn: bool
    """Whether an arm depends on a step that is drawn anew for some seeds."""
    correct: list[RunBits]
    """Test images that arm and baseline predict correctly, one pair per seed and cell, with its
    weight in the mean of `values`; empty if some of the runs do not record them."""

    @property
    def key(self) -> Key:
        return self.arm, self.baseline, frozenset(self.cell.items())


def compare_cells(
    cells: Sequence[CellSummary],
    axis: str,
    pairs: Sequence[tuple[Any, Any]],
    scale: MetricScale,
    named: NamedComparisons | None = None,
) -> list[ArmComparison]:
    """Compare values of an axis in each cell of the other axes, and averaged over those cells.

    Comparisons are corrected by Holm's method: all together, or the primary ones among themselves.
    Those over all cells come first.
    """
    named = named or NamedComparisons()
    pairings, tested = pair_tests(cells, axis, pairs, scale)
    several = any(one.at is None for one in pairings)
    place = {one.key: at for at, one in enumerate(pairings)}
    for at, one in enumerate(pairings):
        # The only cell of a pair may be named without the values of the other axes.
        place.setdefault((one.arm, one.baseline, frozenset()), at)
    primary = [place[key] for key in named.primary]
    claimed = {place[key]: effect for key, effect in named.claimed.items()}
    verdicts = statistics.judge(
        tested,
        scale.margin,
        scale.level,
        higher_is_better=scale.higher_is_better,
        primary=primary,
        claimed=claimed,
    )
    comparisons = []
    for one, verdict in zip(pairings, verdicts, strict=True):
        text = sentence(verdict, _name(axis, one.arm), _name(axis, one.baseline), scale.unit)
        if several:
            text = f"{f'At {describe_cell(one.cell)}' if one.cell else OVERALL}: {text}"
        if verdict.paired.draws:
            text += " Seeds that share a draw of a random step count as one."
        spread = image_spread(one.correct)
        text += f" {spread.sentence()}" if spread is not None else ""
        comparisons.append(_comparison(one, axis, verdict, text, spread))
    return sorted(comparisons, key=lambda comparison: bool(comparison.cell))


def pair_tests(
    cells: Sequence[CellSummary], axis: str, pairs: Sequence[tuple[Any, Any]], scale: MetricScale
) -> tuple[list[Pairing], list[Paired]]:
    """Pair the arms and test each pairing, before correction for the number of comparisons."""
    groups = _by_cell(cells, axis)
    pairings = [one for pair in pairs for one in _pairings(groups, *pair)]
    return pairings, _test(pairings, groups, scale)


def _comparison(
    one: Pairing, axis: str, verdict: Verdict, text: str, spread: ImageSpread | None
) -> ArmComparison:
    tested = verdict.paired
    low, high = tested.interval
    adjusted_low, adjusted_high = verdict.adjusted_interval
    bootstrap_low, bootstrap_high = tested.bootstrap
    return ArmComparison(
        cell=one.cell,
        axis=axis,
        arm=one.arm,
        baseline=one.baseline,
        verdict=verdict.word,
        sentence=text,
        n=tested.n,
        difference=tested.mean,
        low=low,
        high=high,
        adjusted_low=adjusted_low,
        adjusted_high=adjusted_high,
        bootstrap_low=bootstrap_low,
        bootstrap_high=bootstrap_high,
        sd=tested.sd,
        df=tested.df,
        pooled_cells=tested.pooled.cells if tested.pooled else 0,
        pooled_arms=tested.pooled.arms if tested.pooled else 0,
        p=tested.p,
        p_holm=verdict.p,
        p_equivalent=verdict.p_equivalent,
        no_worse=verdict.no_worse,
        images_low=spread.low if spread else None,
        images_high=spread.high if spread else None,
        p_mcnemar=spread.p_mcnemar if spread else None,
        primary=verdict.primary,
        claimed=verdict.claimed,
        claimed_excluded=verdict.claimed_excluded,
        p_claimed=verdict.p_claimed,
        seeds_needed=verdict.seeds_needed,
        seeds_needed_range=verdict.seeds_needed_range,
        seeds_for_equivalence=verdict.seeds_for_equivalence,
        seeds_for_equivalence_range=verdict.seeds_for_equivalence_range,
        seeds_if_as_seen=verdict.seeds_if_as_seen,
        comparisons=verdict.family,
        level=verdict.alpha,
        draws=tested.draws,
    )


def _by_cell(cells: Sequence[CellSummary], axis: str) -> list[_Cell]:
    """Return each cell of the other axes and its summaries by value of `axis`."""
    groups: dict[tuple[Any, ...], dict[Any, CellSummary]] = {}
    for summary in cells:
        key = tuple(item for item in summary.cell.items() if item[0] != axis)
        groups.setdefault(key, {})[summary.cell[axis]] = summary
    return [(dict(key), group) for key, group in groups.items()]


def _pairings(groups: list[_Cell], arm: Any, baseline: Any) -> list[Pairing]:
    """Pair two arms in each cell and, if there are several, first averaged over all cells."""
    pairings, shared_values = [], []
    every: list[dict[int, tuple[np.ndarray, np.ndarray]]] = []
    tested_on: set[str] = set()
    drawn = any(varies(group[a]) for _, group in groups for a in (arm, baseline) if a in group)
    both_run = [arm in group and baseline in group for _, group in groups]
    any_run = any(both_run)
    for at, (cell, group) in enumerate(groups):
        if any_run and not both_run[at]:
            continue  # the study leaves this combination out
        first, second = group.get(arm), group.get(baseline)
        values: dict[int, tuple[float, float]] = {}
        draws, bits = None, dict[int, tuple[np.ndarray, np.ndarray]]()
        if first is not None and second is not None:
            values = {
                s: (first.values[s], second.values[s])
                for s in sorted(first.values)
                if s in second.values
            }
            draws = shared_draws(first, second, list(values))
            if first.correct and second.correct:
                both = first.correct.keys() & second.correct.keys()
                bits = {s: (first.correct[s], second.correct[s]) for s in values if s in both}
            known = {*first.tested_on.values(), *second.tested_on.values()}
            tested_on |= known
            bits = bits if len(known) <= 1 else {}  # other images, or in another order
        every.append(bits)
        shared_values.append(values)
        rows, correct = _rows(values, draws), _weighted([bits], list(values), draws)
        pairings.append(Pairing(cell, at, arm, baseline, rows, draws, drawn, correct))
    if len(pairings) < 2:
        return pairings
    # One row per seed: the mean over all cells, for seeds that were run in each of them.
    seeds = [s for s in shared_values[0] if all(s in values for values in shared_values)]
    every_value = np.array([[values[s] for s in seeds] for values in shared_values], float)
    of_cells = np.add.reduce(every_value, axis=0) / len(shared_values)
    means = dict(zip(seeds, of_cells.tolist(), strict=True))
    shared = (one.draws for one in pairings if one.draws is not None)
    coarsest = min(shared, key=len, default=None)
    if coarsest is not None:
        coarsest = [kept for g in coarsest if (kept := [seed for seed in g if seed in means])]
    rows = _rows(means, coarsest)
    correct = _weighted(every, seeds, coarsest) if len(tested_on) <= 1 else []
    return [Pairing({}, None, arm, baseline, rows, coarsest, drawn, correct), *pairings]


def _rows(values: dict[int, Any], draws: Groups | None) -> np.ndarray:
    """Return (n, 2) values, one row per seed or, given `draws`, the mean of each draw."""
    if draws is None:
        return np.array(list(values.values()), float).reshape(-1, 2)
    known = [[values[seed] for seed in group if seed in values] for group in draws]
    groups = [np.array(rows, float) for rows in known if rows]
    # As `mean` computes it, with less overhead.
    return np.array([np.add.reduce(g, axis=0) / len(g) for g in groups], float).reshape(-1, 2)


def _weighted(
    cells: Sequence[dict[int, tuple[np.ndarray, np.ndarray]]],
    seeds: Sequence[int],
    draws: Groups | None,
) -> list[RunBits]:
    """Weight the runs with these seeds as the mean of `_rows` does; [] if one has no bits."""
    if not any(cells) or not all(seed in bits for bits in cells for seed in seeds):
        return []
    groups = [[seed] for seed in seeds]
    if draws is not None:
        groups = [[seed for seed in group if seed in seeds] for group in draws]
    known = [group for group in groups if group]
    return [
        (*bits[seed], 1 / (len(cells) * len(known) * len(group)))
        for bits in cells
        for group in known
        for seed in group
    ]


def _test(pairings: list[Pairing], groups: list[_Cell], scale: MetricScale) -> list[Paired]:
    """Test each pairing, with the pooled error where seeds do not share draws."""
    sharing = [one for one in pairings if one.draws is not None]
    shared = {arm for one in sharing for arm in (one.arm, one.baseline)}
    drawn_arms = {arm for _, group in groups for arm, summary in group.items() if summary.draws}
    runs = [
        {arm: cell.values for arm, cell in group.items() if arm not in shared & drawn_arms}
        for _, group in groups
    ]
    error = StudyError(runs, scale.resolution)
    tested: list[Paired] = []
    margin, higher = scale.margin, scale.higher_is_better
    for one in pairings:
        places = groups if one.at is None else [groups[one.at]]
        cells = [group for _, group in places]
        times = compare_censored(cells, one.arm, one.baseline) if scale.censored else None
        if times is not None:
            tested.append(times)
            continue
        arm, baseline = one.values.T
        if one.draws is not None:
            known = None
        elif one.at is None:
            known = error.of_means(one.arm, one.baseline, one.drawn)
        else:
            known = error.in_cell(one.at, one.arm, one.baseline)
        if known is not None and known.df <= len(arm) - 1:
            known = None  # the differences alone say more
        test = statistics.paired(arm, baseline, margin, higher, scale.resolution, known)
        tested.append(replace(test, draws=tuple(map(len, one.draws))) if one.draws else test)
    return tested


def _name(axis: str, value: Any) -> str:
    return str(value) if axis in ("selection", ARM, "model") else describe_cell({axis: value})
