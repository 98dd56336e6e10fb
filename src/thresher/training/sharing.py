"""What one run leaves in memory for the next run of the same process.

Only inside `sharing()`: otherwise nothing outlives a run. Study workers use it, because the trials
of a study often train on the same images with the same shapes. At most one value of each kind is
kept, and it is dropped before another one is made, so that no memory is taken twice.
"""

import contextlib
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_active = False
_steps = False
_slots: "list[Slot[object]]" = []


class Slot(Generic[T]):
    """Holds at most one value and the key that it was made for."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._value: T | None = None
        _slots.append(self)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return self._value is not None

    def put(self, key: Hashable, value: T) -> None:
        """Keep a value instead of the one before; outside of `sharing` do nothing."""
        if _active:
            self._key, self._value = key, value

    def take(self, key: Hashable) -> T | None:
        """Remove the kept value, and return it if it was made for `key`."""
        value = self._value if self._key == key else None
        self._key = self._value = None
        return value


@contextlib.contextmanager
def sharing(steps: bool = False) -> Iterator[None]:
    """Let runs in this block take over images from the run before; with `steps`, on a GPU, its
    captured steps as well.

    A run gives the same result as in a process of its own. Between two runs the memory of one
    stays allocated. Not for runs in several threads.
    """
    global _active, _steps
    before = _active, _steps
    _active, _steps = True, steps
    try:
        yield
    finally:
        _active, _steps = before
        if not _active:
            release()


def shares_steps() -> bool:
    """Return whether captured steps are kept for the next run."""
    return _steps


def release() -> None:
    """Drop what is kept."""
    for slot in _slots:
        slot.take(None)
