"""When a run is saved, and from what it is resumed."""

import time

from thresher.distributed.group import Group
from thresher.paths import RunPaths
from thresher.training import checkpoint
from thresher.training.state import RunState

EVERY_S = 60.0


class Saver:
    """Writes checkpoints every `every` steps, or by default once a minute."""

    def __init__(self, paths: RunPaths, group: Group, every: int | None) -> None:
        self.folder, self.group, self.every = paths.checkpoints, group, every
        self._saved_at = time.monotonic()

    def falls_on(self, step: int) -> bool:
        """Return whether a checkpoint every `every` steps falls on this one."""
        return self.every is not None and step % self.every == 0

    def is_due(self, step: int) -> bool:
        """Return whether this worker wants a checkpoint now."""
        if self.every is not None:
            return self.falls_on(step)
        return self.group.first and time.monotonic() - self._saved_at > EVERY_S

    def save(self, state: RunState) -> None:
        """Write a checkpoint; every rank calls it, rank 0 writes."""
        if state.noise is not None:
            state.noise.settle()
        taken = state.to_checkpoint()
        step = state.progress.step
        self.group.on_first(lambda: str(checkpoint.write(self.folder, step, taken)))
        self._saved_at = time.monotonic()

    def resume(self, state: RunState) -> bool:
        """Restore the newest checkpoint; return whether there is one.

        Every rank reads the same folder.
        """
        if not self.group.on_first(lambda: checkpoint.newest(self.folder) is not None):
            return False
        taken = checkpoint.newest(self.folder)
        assert taken is not None
        state.restore(taken)
        return True
