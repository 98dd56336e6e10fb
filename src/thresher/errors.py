"""The one error that Thresher raises for what a user can mend."""

import difflib
from collections.abc import Iterable


class ThresherError(Exception):
    """What went wrong and where, and what to do about it: one sentence, no traceback.

    The command line prints it and exits with 2; set THRESHER_DEBUG=1 to see the traceback.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(f"{what}; {fix}" if fix else what)


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean "x"?`, or the list of what there is: the second half of a good refusal."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"there is {', '.join(names)}" if names else "there is none"
