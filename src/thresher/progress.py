"""Progress bars: live on a terminal, a plain line every few seconds elsewhere.

They are written to standard error, because standard output is for results (`--json`).
"""

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
PLAIN_EVERY_S = 5.0


class Bar:
    """A progress bar; off a terminal, lines such as `packing: 12,000/60,000 (20 %), 8 s left` that
    begin after five seconds."""

    def __init__(self, label: str, total: float | None, unit: str, active: bool) -> None:
        self.label, self.total, self.unit, self.active = label, total, unit, active
        self.done, self.before, self.remark = 0.0, 0.0, ""
        self.begun = self.shown = time.monotonic()
        self.printed = False

    def advance(self, by: float = 1) -> None:
        """Add `by` to the finished amount."""
        self.done += by
        if self.active and time.monotonic() - self.shown >= PLAIN_EVERY_S:
            self._print()

    def resume(self, done: float) -> None:
        """Begin at `done`, which took none of the time that is shown."""
        self.before = done
        self.advance(done)

    def prepare(self, text: str) -> None:
        """Show what was prepared; that time does not count for the time that is left."""
        self.note(text)
        if self.done == self.before:
            self.begun = time.monotonic()
        self.advance(0)

    def expect(self, total: float) -> None:
        """Change the amount that is finished in the end."""
        self.total = total

    def note(self, text: str) -> None:
        """Show a short text (a loss, a file name) beside the bar."""
        self.remark = text

    def _print(self) -> None:
        self.shown, self.printed = time.monotonic(), True
        spent = self.shown - self.begun
        text = f"{self.label}: {self.done:,.0f}"
        if self.total:
            text += f"/{self.total:,.0f} {self.unit}({100 * self.done / self.total:.0f} %)"
            new = self.done - self.before
            text += f", {spent / new * (self.total - self.done):,.0f} s left" if new else ""
        else:
            text += f" {self.unit}in {spent:,.0f} s"
        # Work goes on if nobody reads its progress any more, as with `2>&1 | head`.
        with contextlib.suppress(OSError):
            print(text + (f" · {self.remark}" if self.remark else ""), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print the last line."""
        if self.printed:
            self._print()


@contextlib.contextmanager
def bar(
    label: str, total: float | None = None, unit: str = "", active: bool = True
) -> Iterator[Bar]:
    """Show a progress bar of `total` (None if unknown) `unit` ("images") while the block runs."""
    if not active or not sys.stderr.isatty():
        plain = Bar(label, total, f"{unit} " if unit else "", active)
        yield plain
        plain.close()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[remark]}", markup=False),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as live:
        task = live.add_task(label, total=total, remark="")

        class _LiveBar(Bar):
            def advance(self, by: float = 1) -> None:
                live.advance(task, by)

            def expect(self, total: float) -> None:
                live.update(task, total=total)

            def note(self, text: str) -> None:
                live.update(task, remark=text)

            prepare = note  # its time left counts from the first that is finished

        yield _LiveBar(label, total, unit, active)


def track(items: Iterable[T], label: str, unit: str = "") -> Iterator[T]:
    """Iterate over `items` with a progress bar."""
    total = len(items) if isinstance(items, Sized) else None
    with bar(label, total, unit) as shown:
        for item in items:
            yield item
            shown.advance()
