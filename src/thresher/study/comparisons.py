"""Compare the arms of a study pair by pair and say in one sentence how each comparison ends."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from thresher.study import statistics
from thresher.study.definition import ARM
from thresher.study.statistics import Verdict
from thresher.study.summaries import CellSummary, describe_cell
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
    """better, worse, equivalent or "not enough runs"."""
    sentence: str
    """The verdict with its evidence, in words."""
    n: int
    """Number of seeds that both have."""
    difference: float
    """Mean of arm minus baseline; NaN if n is 0."""
    low: float
    """Lower end of the 95 % interval of the difference; infinite if n is below 2."""
    high: float
    bootstrap_low: float
    """Lower end of the 95 % bootstrap interval, whatever n is."""
    bootstrap_high: float
    p: float
    """p-value of the paired t-test of no difference."""
    p_holm: float
    """The same after Holm's correction for all comparisons of the study."""
    p_equivalent: float
    """p-value of the two one-sided tests of equivalence, after Holm's correction."""
    no_worse: bool
    """Whether arm is shown to be not worse than baseline by the margin or more."""
    seeds_needed: int | None
    """Seeds needed to detect a difference as large as the margin; None if unknown."""
    seeds_if_as_seen: int | None
    """Seeds needed to detect a difference as large as the measured one; None if unknown."""
    comparisons: int
    """Number of comparisons that Holm's correction covers."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def compare_cells(
    cells: Sequence[CellSummary], axis: str, pairs: Sequence[tuple[Any, Any]], scale: MetricScale
) -> list[ArmComparison]:
    """Compare values of an axis in each cell of the other axes, and averaged over those cells.

    All comparisons are corrected together (Holm). Those over all cells come first.
    """
    compared = [
        (cell, arm, baseline, values)
        for arm, baseline in pairs
        for cell, values in _pairings(cells, axis, arm, baseline)
    ]
    margin, higher = scale.margin, scale.higher_is_better
    tested = [
        statistics.paired(values[:, 0], values[:, 1], margin, higher, scale.resolution)
        for *_, values in compared
    ]
    verdicts = statistics.judge(tested, margin, higher_is_better=higher)
    several = any(cell for cell, *_ in compared)
    comparisons = []
    for (cell, arm, baseline, _), verdict in zip(compared, verdicts, strict=True):
        text = sentence(verdict, _name(axis, arm), _name(axis, baseline), scale.unit)
        if several:
            text = f"{f'At {describe_cell(cell)}' if cell else OVERALL}: {text}"
        low, high = verdict.paired.interval
        bootstrap_low, bootstrap_high = verdict.paired.bootstrap
        comparisons.append(
            ArmComparison(
                cell=cell,
                axis=axis,
                arm=arm,
                baseline=baseline,
                verdict=verdict.word,
                sentence=text,
                n=verdict.paired.n,
                difference=verdict.paired.mean,
                low=low,
                high=high,
                bootstrap_low=bootstrap_low,
                bootstrap_high=bootstrap_high,
                p=verdict.paired.p,
                p_holm=verdict.p,
                p_equivalent=verdict.p_equivalent,
                no_worse=verdict.no_worse,
                seeds_needed=verdict.seeds_needed,
                seeds_if_as_seen=verdict.seeds_if_as_seen,
                comparisons=verdict.family,
            )
        )
    return sorted(comparisons, key=lambda comparison: bool(comparison.cell))


def _pairings(
    cells: Sequence[CellSummary], axis: str, arm: Any, baseline: Any
) -> list[tuple[Values, np.ndarray]]:
    """Return (other axes, (n, 2) values of arm and baseline by shared seed) for each cell.

    If there are several cells, the first entry is the mean over all of them, with other axes {}.
    """
    grouped: dict[tuple[Any, ...], dict[Any, CellSummary]] = {}
    for summary in cells:
        key = tuple(item for item in summary.cell.items() if item[0] != axis)
        grouped.setdefault(key, {})[summary.cell[axis]] = summary
    by_cell = []
    for key, group in grouped.items():
        first, second = (group[v].values if v in group else {} for v in (arm, baseline))
        by_cell.append((dict(key), {s: (first[s], second[s]) for s in first if s in second}))
    pairings = [
        (cell, np.array([shared[seed] for seed in sorted(shared)], float).reshape(-1, 2))
        for cell, shared in by_cell
    ]
    if len(by_cell) < 2:
        return pairings
    # One number per seed: the mean over all cells, for seeds that were run in each of them.
    groups = [shared for _, shared in by_cell]
    seeds = [seed for seed in groups[0] if all(seed in shared for shared in groups)]
    means = [np.mean([shared[seed] for shared in groups], axis=0) for seed in seeds]
    return [({}, np.array(means, float).reshape(-1, 2)), *pairings]


def _name(axis: str, value: Any) -> str:
    return str(value) if axis in ("selection", ARM, "model") else describe_cell({axis: value})


OVERALL = "Averaged over all settings"
"""Begins the sentence of a comparison over all cells."""


def sentence(verdict: Verdict, arm: str, baseline: str, unit: str = "points") -> str:
    """Return a verdict with its evidence as a sentence."""
    tested, margin = verdict.paired, f"{verdict.margin:g} {unit}"
    open_question = f"{arm} vs. {baseline}: not enough runs to tell"
    if tested.n == 0:
        return f"{open_question}. No seed has a result for both."
    low, high = tested.interval
    digits = statistics.decimals(tested.mean, low, high)
    difference = f"{tested.mean:+.{digits}f} {unit}"
    if tested.n == 1:
        return (
            f"{open_question}. One seed gives a difference of {difference}; at least three are "
            "needed to judge the spread between seeds."
        )
    interval = f"{low:+.{digits}f} to {high:+.{digits}f}"
    evidence = f"mean difference {difference}, 95 % interval {interval}, {tested.n} seeds"
    if verdict.word in ("better", "worse"):
        small = f", but by less than {margin}" if abs(tested.mean) < verdict.margin else ""
        p = f"{verdict.p:.3f}" if verdict.p >= 0.001 else f"{verdict.p:.0e}"
        return f"{arm} is {verdict.word} than {baseline}{small} ({evidence}, p = {p})."
    if verdict.word == "equivalent":
        return f"{arm} and {baseline} are equivalent within {margin} ({evidence})."
    needed, as_seen = verdict.seeds_needed, verdict.seeds_if_as_seen
    count = f"about {needed:,}" if needed is not None else f"more than {statistics.MOST_SEEDS:,}"
    text = f"{open_question} ({evidence}). "
    if not low <= 0 <= high:
        text += f"It is not significant after correction for {verdict.family} comparisons. "
    text += f"Detecting a difference of {margin} takes {count} seeds"
    if as_seen is not None and abs(tested.mean) > verdict.margin:
        text += f"; detecting one as large as measured takes about {as_seen:,}"
    if verdict.no_worse:
        text += f". {arm} is not worse than {baseline} by {margin} or more"
    return f"{text}."
