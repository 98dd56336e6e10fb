"""How the rate goes over a run: a pure function of the samples seen, which knows no workers."""

import math
from dataclasses import dataclass

from thresher.errors import ThresherError, nearest

SCHEDULES = ("constant", "step", "poly", "cosine")


@dataclass(frozen=True)
class Schedule:
    """The factor on the peak rate for a step that begins after `seen` samples.

    Warm-up is linear from `start` to 1 and counts the step's own batch, so that the first step is
    not lost on a rate of zero; the decay counts the samples before it, so that the last is not.
    """

    kind: str
    total: int
    """Samples in the whole run."""
    warmup: float = 0
    """Samples over which the rate rises."""
    start: float = 0.0
    """The factor that warm-up begins from."""
    milestones: tuple[float, ...] = ()
    """For `step`: samples seen at which the rate falls."""
    gamma: float = 0.1
    """For `step`: by how much it falls."""
    power: float = 2.0
    """For `poly`: (1 - t) to this power."""

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise ThresherError(
                f'there is no schedule "{self.kind}"', nearest(self.kind, SCHEDULES)
            )
        if self.warmup < 0 or self.total < 0:
            raise ThresherError("a schedule's samples may not be negative")

    def factor(self, seen: float, batch: int) -> float:
        """For the step that takes samples seen … seen + batch."""
        if seen < self.warmup:
            rise = min(1.0, (seen + batch) / self.warmup)
            return (self.start + (1 - self.start) * rise) * self._step(seen)
        return self._decay(seen)

    def _decay(self, seen: float) -> float:
        length = self.total - self.warmup
        t = min(1.0, (seen - self.warmup) / length) if length > 0 else 1.0
        if self.kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * t))
        if self.kind == "poly":
            return (1 - t) ** self.power
        return self._step(seen)

    def _step(self, seen: float) -> float:
        """1 for every kind but `step`, whose milestones count during the warm-up too."""
        if self.kind != "step":
            return 1.0
        return self.gamma ** sum(seen >= milestone for milestone in self.milestones)
