"""Verdicts in words."""

import math

from thresher.errors import counted
from thresher.study import statistics
from thresher.study.power import MOST_SEEDS
from thresher.study.statistics import Paired, Verdict
from thresher.study.survival import CensoredTimes

OVERALL = "Averaged over all settings"
"""Begins the sentence of a comparison over all cells."""


def sentence(verdict: Verdict, arm: str, baseline: str, unit: str = "points") -> str:
    """Return a verdict with its evidence as a sentence."""
    tested = verdict.paired
    if isinstance(tested, CensoredTimes):
        times = _times(verdict, tested, arm, baseline, unit)
        return " ".join([times, *_claim(verdict, unit)])
    open_question = f"{arm} vs. {baseline}: not enough runs to tell"
    if tested.n == 0:
        return f"{open_question}. No run of one has a partner with the same seed."
    low, high = tested.interval
    digits = statistics.decimals(tested.mean, low, high, size=verdict.margin)
    difference = f"{tested.mean:+.{digits}f} {unit}"
    if tested.n == 1:
        one = "draw" if tested.draws else "seed"
        return (
            f"{open_question}. One {one} gives a difference of {difference}; at least three are "
            f"needed to judge the spread between {one}s."
        )
    interval = f"{low:+.{digits}f} to {high:+.{digits}f}"
    evidence = (
        f"mean difference {difference}, 95 % interval {interval}, {_counted(tested)}, "
        f"{_error(tested)}"
    )
    return " ".join([_conclusion(verdict, arm, baseline, unit, evidence), *_claim(verdict, unit)])


def _times(verdict: Verdict, tested: CensoredTimes, arm: str, baseline: str, unit: str) -> str:
    """Return the verdict on times to a target that some runs did not reach."""
    low, high = tested.interval
    digits = statistics.decimals(tested.mean, low, high, size=verdict.margin)
    interval = f"95 % interval {low:+.{digits}f} to {high:+.{digits}f}"
    evidence = (
        f"restricted mean difference {tested.mean:+.{digits}f} {unit}, "
        f"{interval if math.isfinite(high) else 'spread unknown'}, log-rank {_p(verdict.p)}, "
        f"{_counted(tested)}; "
        f"{counted(tested.censored, 'run')} did not reach the target and "
        f"{'is' if tested.censored == 1 else 'are'} censored"
    )
    if verdict.word in ("better", "worse"):
        faster = "earlier" if tested.mean < 0 else "later"
        return f"{arm} reaches the target {faster} than {baseline} ({evidence})."
    if verdict.p < verdict.alpha:
        most = "earlier" if tested.log_rank < 0 else "later"
        return (
            f"{arm} vs. {baseline}: neither is faster, because most runs of {arm} are {most}, but "
            f"not their mean ({evidence})."
        )
    return f"{arm} vs. {baseline}: not enough runs to tell ({evidence})."


def _conclusion(verdict: Verdict, arm: str, baseline: str, unit: str, evidence: str) -> str:
    tested, margin = verdict.paired, f"{float(f'{verdict.margin:.3g}'):g} {unit}"
    if verdict.word in ("better", "worse"):
        small = f", but by less than {margin}" if abs(tested.mean) < verdict.margin else ""
        return f"{arm} is {verdict.word} than {baseline}{small} ({evidence}, {_p(verdict.p)})."
    if verdict.word == "equivalent":
        return f"{arm} and {baseline} are equivalent within {margin} ({evidence})."
    text = f"{arm} vs. {baseline}: not enough runs to tell ({evidence}). "
    if verdict.word == "no worse":
        text = f"{arm} is no worse than {baseline} by {margin} or more ({evidence}). "
    low, high = tested.interval
    if not low <= 0 <= high:
        among = f" after correction for {verdict.family} comparisons" if verdict.family > 1 else ""
        text += f"It is not significant{among} (level {100 * verdict.alpha:.2g} %). "
    kind = "such draws" if tested.draws else "seeds"
    needed = _seeds(verdict.seeds_needed, verdict.seeds_needed_range, kind)
    text += f"Detecting a difference of {margin} takes {needed}"
    as_seen = verdict.seeds_if_as_seen
    if as_seen is not None and abs(tested.mean) > verdict.margin:
        text += f"; detecting one as large as measured takes about {as_seen:,}"
    if verdict.seeds_for_equivalence is not None:
        equal = _seeds(verdict.seeds_for_equivalence, verdict.seeds_for_equivalence_range, kind)
        text += f"; showing that equal arms are equivalent takes {equal}"
    if verdict.no_worse and verdict.word != "no worse":
        text += f". {arm} is not worse than {baseline} by {margin} or more"
    return f"{text}."


def _claim(verdict: Verdict, unit: str) -> list[str]:
    """Return the sentence about the claimed effect, if there is one."""
    if verdict.claimed is None or verdict.p_claimed is None:
        return []
    claim = f"claimed effect of {verdict.claimed:+g} {unit}"
    if verdict.claimed_excluded:
        return [f"The runs exclude the {claim} (one-sided {_p(verdict.p_claimed)})."]
    return [f"The runs do not exclude the {claim} (one-sided {_p(verdict.p_claimed)})."]


def _error(tested: Paired) -> str:
    """Say where the error comes from."""
    number = f"{tested.df:,.0f}" if tested.df >= 1000 else f"{tested.df:.3g}"
    degrees = f"{number} degrees of freedom" if tested.df != 1 else "1 degree of freedom"
    if tested.pooled is None:
        return degrees
    cells, arms = tested.pooled.cells, tested.pooled.arms
    return f"error pooled over {f'{cells} cells' if cells > 1 else f'{arms} arms'}, {degrees}"


def _counted(tested: Paired) -> str:
    """Return the number of seeds, or of draws and their seeds."""
    if not tested.draws:
        return f"{tested.n} {'seed' if tested.n == 1 else 'seeds'}"
    least, most = min(tested.draws), max(tested.draws)
    size = f"{most} seeds each" if least == most else f"{least} to {most} seeds"
    return f"{tested.n} {'draw' if tested.n == 1 else 'draws'} of {size}"


def _seeds(needed: int | None, ends: tuple[int | None, int | None], kind: str) -> str:
    """Return a number of seeds with its range, which is as uncertain as the spread of the runs."""
    if needed is None:
        return f"more than {MOST_SEEDS:,} {kind}"
    low, high = (f"{end:,}" if end is not None else f"over {MOST_SEEDS:,}" for end in ends)
    return f"about {needed:,} {kind} ({low} to {high})"


def _p(p: float) -> str:
    if p < 1e-15:
        return "p < 1e-15"
    return f"p = {p:.3f}" if p >= 0.001 else f"p = {p:.0e}"
