"""Signals that ask a process to stop: an exception that no code can drop for good.

Python drops an exception that a signal handler raises inside a weakref callback, `__del__` or a
callback of a C library, and libraries drop some in handlers of their own. The process would go on
as if nobody had asked. So what a `Stop` raises is raised again until its block is left.

While torch is imported, nothing is raised: its C++ code calls Python without catching exceptions,
so that one would abort the process. The signal is repeated until torch has been imported.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

REPEAT_S = 0.5
"""How long code that has dropped the exception goes on until it is raised again."""
IMPORT_REPEAT_S = 0.05
"""How often it is tried whether torch has been imported."""


class Stop:
    """A block that signals end: a context manager, and the handler of the signals in it.

    Clean-up is not disturbed: while the exception is being handled, as in `finally`, further
    signals, such as a second Ctrl-C, do nothing. Signals that the process ignores, as with `nohup`,
    stay ignored. Outside the main thread, which alone receives signals, the block has no effect.

    Args:
        error: Returns the exception to raise for a signal.
        numbers: The signals.
    """

    def __init__(self, error: Callable[[int], BaseException], *numbers: int) -> None:
        self._error, self._numbers = error, numbers
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self.raised: BaseException | None = None
        """What the first signal, or the last repetition, has raised."""
        self._late: int | None = None
        """A signal that arrived when the block had ended, or has not been raised yet."""
        self._repeats = self._leaving = False
        self._ended, self._gone = _thread.allocate_lock(), _thread.allocate_lock()

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._process = os.getpid()
        handlers = {number: signal.getsignal(number) for number in self._numbers}
        self._before = {n: h for n, h in handlers.items() if h not in (signal.SIG_IGN, None)}
        try:
            for number in self._before:
                signal.signal(number, self)
        except BaseException:  # a signal has arrived already
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        if self._repeats and os.getpid() == self._process:  # a fork does not have the thread
            self._ended.release()
            self._gone.acquire()
            signal.pthread_sigmask(signal.SIG_BLOCK, ())  # what was sent arrives here at the latest
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.raised = None  # and the frames that it holds
        if self._late is not None:
            signal.raise_signal(self._late)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception, unless it is being handled."""
        if os.getpid() != self._process:  # a fork ends as it would without this handler
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
            return
        own = self._own_code(frame)
        if self._leaving or own is Stop.__exit__.__code__:
            self._late = None if self.raised is not None else number
        elif own in (None, Stop.__enter__.__code__) and not self._cleans_up():
            if not self._repeats:
                self._repeats = True
                self._start_to_repeat(number)
            if _imports_torch(frame):
                self._late = number
                return
            self._late = None
            self.raised = self._error(number)
            raise self.raised

    def _own_code(self, frame: FrameType | None) -> CodeType | None:
        """Return the method of this object that a signal has interrupted."""
        if frame is None or frame.f_globals is not globals():
            return None
        return frame.f_code if frame.f_locals.get("self") is self else None

    def _cleans_up(self) -> bool:
        """Return whether the main thread is handling the exception, or closing a generator."""
        handled = sys.exc_info()[1] if self.raised is not None else None
        while handled is not None:
            if handled is self.raised or isinstance(handled, GeneratorExit):
                return True
            handled = handled.__context__
        return False

    def _start_to_repeat(self, number: int) -> None:
        self._ended.acquire(blocking=False)
        self._gone.acquire(blocking=False)
        try:
            # `threading.Thread` takes locks, which the code that was interrupted may hold.
            _thread.start_new_thread(self._repeat, (number,))
        except RuntimeError:  # no more threads
            self._gone.release()

    def _repeat(self, number: int) -> None:
        main = threading.main_thread().ident
        while main is not None and not self._ended.acquire(timeout=self._pause_s()):
            signal.pthread_kill(main, number)
        self._gone.release()

    def _pause_s(self) -> float:
        return IMPORT_REPEAT_S if self.raised is None else REPEAT_S


def _imports_torch(frame: FrameType | None) -> bool:
    """Return whether `frame`, or a caller of it, runs a module of torch."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = str(frame.f_globals.get("__name__"))
            if name == "torch" or name.startswith("torch."):
                return True
        frame = frame.f_back
    return False


def interruptible() -> Stop:
    """Return a block that SIGTERM, SIGHUP and Ctrl-C end with KeyboardInterrupt.

    Only where nobody else handles the signal: a program keeps its own handlers.
    """
    nobody = (signal.SIG_DFL, signal.default_int_handler)
    names = ("SIGTERM", "SIGINT", "SIGHUP") if sys.platform != "win32" else ()
    numbers = [signal.Signals[name] for name in names]
    return Stop(keyboard_interrupt, *(n for n in numbers if signal.getsignal(n) in nobody))


def asked_to_stop() -> BaseException | None:
    """Return what a signal has raised in a `Stop`, also if a library made another error of it.

    Some C code replaces any exception of what it calls, such as the length of a sequence.
    """
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if isinstance(handler, Stop) and handler.raised is not None:
            return handler.raised
    return None


def keyboard_interrupt(number: int) -> KeyboardInterrupt:
    """Return the exception for a signal; it names any but that of Ctrl-C."""
    return KeyboardInterrupt(*([] if number == signal.SIGINT else [signal.Signals(number).name]))


def interrupted(error: KeyboardInterrupt) -> int:
    """Say that this command was interrupted; return its exit code, as shells know it."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        print("thresher: interrupted", file=sys.stderr)
    name = str(error)
    return 128 + (signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGINT)
