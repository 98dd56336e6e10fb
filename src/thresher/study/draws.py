"""Draws that runs share: an extractor or a selection that several seeds use is one random outcome.

Its luck is not averaged out over those seeds, so it is a random effect: differences are averaged
within a draw first, and the number of draws decides. One draw for all seeds cannot be judged at
all, which a note says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from thresher.study.summaries import CellSummary

Groups = list[list[int]]
"""Seeds by the draw that they share."""


def shared_draws(first: CellSummary, second: CellSummary, seeds: Sequence[int]) -> Groups | None:
    """Return the seeds of two cells grouped by draw; None if each seed has draws of its own.

    If several steps are drawn fewer times than there are seeds, seeds that share a draw of any of
    them are in one group. A step that is drawn once does not count: nothing is known of its spread.
    """
    groups: Groups | None = None
    for cell in (cell for cell in (first, second) if cell.draws):
        for step in dict.fromkeys(step for seed in seeds for step in cell.draws.get(seed, {})):
            several = len({draw.get(step) for draw in cell.draws.values()}) > 1
            outcomes = {seed: cell.draws.get(seed, {}).get(step) for seed in seeds}
            if several and len(set(outcomes.values())) < len(seeds):
                groups = _joined(groups or [[seed] for seed in seeds], outcomes)
    return groups


def _joined(groups: Groups, outcomes: Mapping[int, str | None]) -> Groups:
    """Join the groups that share an outcome."""
    for outcome in dict.fromkeys(outcomes.values()):
        together = [g for g in groups if any(outcomes[seed] == outcome for seed in g)]
        merged = sorted(seed for group in together for seed in group)
        groups = [g if g is not together[0] else merged for g in groups if g not in together[1:]]
    return groups


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
                f'each = ["seed"] in {"the step" if len(once) == 1 else "these steps"} draws it '
                "anew for every seed."
            )
    return texts
