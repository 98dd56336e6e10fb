"""Whether arms that took equally many steps also trained on equally many samples."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from thresher.study.results import Trial

TOLERATED = 0.01
"""Share of samples by which arms may differ."""


def unequal_samples(
    trials: Sequence[Trial], axes: Iterable[str], axis: str, pairs: Sequence[tuple[Any, Any]]
) -> list[str]:
    """Return a sentence on compared arms that took the same steps on different numbers of samples.

    The last batch of an epoch holds what is left of it. An arm with fewer samples may therefore
    have larger or smaller last batches than another, and train on more or fewer samples in as many
    steps; at large batches that changes the accuracy by more than the arms differ. `axes` are those
    that are not tuned: tuning may choose different values of the others for two arms.
    """
    rest = [name for name in axes if name != axis]
    runs: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        if trial.status == "finished" and trial.samples and trial.steps:
            others = tuple(trial.cell[name] for name in rest)
            runs.setdefault((trial.cell[axis], others), []).append(trial)
    texts = []
    for arm, baseline in pairs:
        shares = [
            fmean(t.samples or 0 for t in mine) / fmean(t.samples or 0 for t in theirs) - 1
            for (value, others), mine in runs.items()
            if value == arm and (theirs := runs.get((baseline, others)))
            if {t.steps for t in mine} == {t.steps for t in theirs}
        ]
        if any(abs(share) > TOLERATED for share in shares):
            texts.append(
                f"{arm} trained on {_span(min(shares), max(shares))} samples than {baseline}"
            )
    if not texts:
        return []
    return [
        f"In equally many steps, {', '.join(texts)}: the last batches of their epochs differ in "
        "size, so the differences are not those of the data alone. drop_last = true gives all "
        "steps the same size."
    ]


def _span(low: float, high: float) -> str:
    """Return the range of shares in words: `5.1 % fewer to 8.4 % more`, `up to 8.4 % more`."""
    fewer, more = f"{-100 * low:.1f} % fewer", f"{100 * high:.1f} % more"
    if low < 0 < high:
        return f"{fewer} to {more}"
    return f"up to {more if high > 0 else fewer}"
