"""Whether something happens too often, decided after as few cases as the errors allow."""

import math
from collections.abc import Iterable


def happens_too_often(
    cases: Iterable[bool], most: float = 0.05, too_often: float = 0.1, risk: float = 0.01
) -> bool:
    """Return whether a share `too_often` of all cases is true, rather than `most`.

    Wald's sequential probability ratio test: the answer is wrong with probability `risk` if the
    share is `most` or less, or `too_often` or more. If the cases end before, the likelier counts.
    """
    hit, miss = math.log(too_often / most), math.log((1 - too_often) / (1 - most))
    enough = math.log((1 - risk) / risk)
    evidence = 0.0
    for case in cases:
        evidence += hit if case else miss
        if abs(evidence) >= enough:
            break
    return evidence > 0
