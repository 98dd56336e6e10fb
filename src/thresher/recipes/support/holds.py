"""Whether a claim holds, from the corrected verdicts of a study."""

from collections.abc import Iterable

from thresher.recipes.base import Verdict
from thresher.study.comparisons import ArmComparison
from thresher.study.power import DECISION


def share_of_level(analyses: int) -> float:
    """Return the level of each of several analyses, so that their recipe has that of one."""
    return DECISION / analyses


def if_better(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is better" holds; partly if it is, but by less than claimed."""
    if comparison.verdict == "better":
        return "partly" if comparison.claimed_excluded else "yes"
    against = ("worse", "equivalent", "excludes the claimed effect")
    return "no" if comparison.verdict in against else "not enough runs"


def if_worse(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is worse" holds."""
    if comparison.verdict == "worse":
        return "yes"
    return "no" if comparison.verdict in ("better", "equivalent") else "not enough runs"


def if_equal(comparison: ArmComparison) -> Verdict:
    """Return whether "both arms are equal" holds: their difference is within the margin."""
    if comparison.p_equivalent < comparison.level:
        return "yes"
    return "no" if comparison.verdict in ("better", "worse") else "not enough runs"


def if_no_worse(comparison: ArmComparison) -> Verdict:
    """Return whether "the arm is at least as good" holds, as far as the margin."""
    if comparison.no_worse or comparison.verdict == "better":
        return "yes"
    return "no" if comparison.verdict == "worse" else "not enough runs"


def if_all(verdicts: Iterable[Verdict]) -> Verdict:
    """Return whether a claim holds that consists of several."""
    words = set(verdicts)
    if "no" in words:
        return "no"
    return "yes" if words == {"yes"} else "not enough runs"


def if_any(verdicts: Iterable[Verdict]) -> Verdict:
    """Return whether a claim holds for which one of several is enough."""
    words = set(verdicts)
    if "yes" in words:
        return "yes"
    return "no" if words == {"no"} else "not enough runs"
