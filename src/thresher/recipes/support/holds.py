"""Whether a claim holds, from the corrected verdicts of a study."""

from collections.abc import Iterable

from thresher.recipes.base import Verdict
from thresher.study.comparisons import ArmComparison
from thresher.study.power import DECISION


def share_of_level(analyses: int) -> float:
    """Return the level of each of several analyses, so that their recipe has that of one."""
    return DECISION / analyses


def decided(yes: bool, no: bool) -> Verdict:
    """Return the verdict if the runs show that a claim holds, or that it does not."""
    return "yes" if yes else "no" if no else "not enough runs"


def if_better(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is better" holds; partly if it is, but by less than claimed."""
    if comparison.verdict == "better" and comparison.claimed_excluded:
        return "partly"
    against = ("worse", "equivalent", "excludes the claimed effect")
    return decided(comparison.verdict == "better", comparison.verdict in against)


def if_worse(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is worse" holds."""
    return decided(comparison.verdict == "worse", comparison.verdict in ("better", "equivalent"))


def if_equal(comparison: ArmComparison) -> Verdict:
    """Return whether "both arms are equal" holds: their difference is within the margin."""
    equal = comparison.p_equivalent < comparison.level
    return decided(equal, comparison.verdict in ("better", "worse"))


def if_no_worse(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is at least as good" holds, as far as the margin."""
    holds = comparison.no_worse or comparison.verdict == "better"
    return decided(holds, comparison.verdict == "worse")


def if_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Return whether a claim holds that consists of several."""
    words = set(verdicts)
    return decided(words == {"yes"}, "no" in words)


def if_any(verdicts: Iterable[Verdict]) -> Verdict:
    """Return whether a claim holds for which one of several is enough."""
    words = set(verdicts)
    return decided("yes" in words, words == {"no"})
