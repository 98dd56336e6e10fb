"""Draws that runs share: an extractor or a selection that several seeds use is one random outcome.

Its luck is not averaged out over those seeds, so it is a random effect: differences are averaged
within a draw first, and the number of draws decides. One draw for all seeds cannot be judged at
all, which a note says.
"""

from collections.abc import Sequence
from typing import Any

from thresher.study.summaries import CellSummary

Groups = list[list[int]]
"""Seeds by the draw that they share."""


def shared_draws(first: CellSummary, second: CellSummary, seeds: Sequence[int]) -> Groups | None:
    """Return the seeds of two cells grouped by draw; None if each seed has draws of its own.

    If several steps are drawn fewer times than there are seeds, the step with the fewest draws
    decides. A step that is drawn once does not: nothing is known of its spread.
    """
    groupings = []
    for cell in (first, second):
        for step in dict.fromkeys(step for seed in seeds for step in cell.draws.get(seed, {})):
            groups: dict[str | None, list[int]] = {}
            for seed in seeds:
                groups.setdefault(cell.draws.get(seed, {}).get(step), []).append(seed)
            if 1 < len(groups) < len(seeds):
                groupings.append(list(groups.values()))
    return min(groupings, key=len, default=None)


def varies(cell: CellSummary) -> bool:
    """Return whether the seeds of a cell use different outcomes of some step."""
    draws = list(cell.draws.values())
    return any(draw != draws[0] for draw in draws)


def notes(cells: Sequence[CellSummary], axis: str) -> list[str]:
    """Return a sentence for each arm without runs, or whose draws all seeds share."""
    arms: dict[Any, list[CellSummary]] = {}
    for cell in cells:
        arms.setdefault(cell.cell[axis], []).append(cell)
    texts = []
    for arm, members in arms.items():
        if not any(cell.n or cell.censored for cell in members):
            texts.append(f"{axis} {arm} has no run with a result, so nothing is known about it.")
        once: dict[str, int] = {}
        for cell in members:
            for step in dict.fromkeys(step for draw in cell.draws.values() for step in draw):
                used = [draw.get(step) for draw in cell.draws.values()]
                if len(used) > 1 and len(set(used)) == 1:
                    once[step] = max(once.get(step, 0), len(used))
        if once:
            steps = " and ".join(f'"{step}"' for step in once)
            texts.append(
                f"{axis} {arm}: all {max(once.values())} seeds share one outcome of {steps}, so "
                "its luck is not averaged out and the verdicts hold for this outcome only; "
                'each = ["seed"] in the step draws it anew for every seed.'
            )
    return texts
