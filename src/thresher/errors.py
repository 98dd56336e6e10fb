"""Errors that a user can fix: one sentence that says what is wrong and what to do next.

Each also subclasses the built-in error that a Python user expects. Messages name Python
parameters; only the command line turns those names into flags.
"""

import difflib
from collections.abc import Iterable


class ThresherError(Exception):
    """Base class of every error that the user can fix.

    The command line prints it and exits with code 2. Set THRESHER_DEBUG=1 to see the traceback.

    Args:
        what: What is wrong, and where.
        fix: What to do about it.
        parameter: The parameter that is wrong, where `what` begins with its name.

    Example:
        >>> from thresher import Pack, ThresherError
        >>> try:
        ...     Pack.open("nothing-here")
        ... except ThresherError as error:
        ...     print(type(error).__name__, isinstance(error, FileNotFoundError))
        NotFoundError True
    """

    def __init__(self, what: str, fix: str = "", parameter: str | None = None) -> None:
        self.what = what
        self.fix = fix
        self.parameter = parameter
        super().__init__(f"{what}; {fix}" if fix else what)

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}" if self.fix else self.what

    def __reduce__(self) -> tuple[type, tuple[str, str, str | None]]:
        """Pickle the parts, not the sentence, for other processes."""
        return type(self), (self.what, self.fix, self.parameter)


class InvalidValueError(ThresherError, ValueError):
    """A parameter or a field of a file has a value that is not allowed."""


class InvalidTypeError(ThresherError, TypeError):
    """A parameter is an object of a type that is not allowed."""


class NotFoundError(ThresherError, FileNotFoundError):
    """A file, folder, pack, run or selection does not exist."""


class AlreadyExistsError(ThresherError, FileExistsError):
    """An output exists and is not overwritten."""


class BusyError(ThresherError, BlockingIOError):
    """Another process is writing to the same place."""


class UnreadableError(ThresherError, OSError):
    """A file or folder exists, but the system does not let this process read it."""


class MissingDependencyError(ThresherError, ImportError):
    """An optional package is needed and cannot be imported."""


def check_type(
    value: object, kind: type | tuple[type, ...], parameter: str, what: str, fix: str = ""
) -> None:
    """Raise InvalidTypeError unless `value` is a `kind`, which the message calls `what`.

    >>> check_type(None, int, "count", "an integer")
    Traceback (most recent call last):
    thresher.errors.InvalidTypeError: count must be an integer, got None
    """
    if not isinstance(value, kind):
        given = "None" if value is None else type(value).__name__
        raise InvalidTypeError(f"{parameter} must be {what}, got {given}", fix, parameter)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number and what it counts, for messages; `many` is `one` with an s by default.

    >>> counted(1, "image"), counted(1200, "image"), counted(2, "class is", "classes are")
    ('1 image', '1,200 images', '2 classes are')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list all of them; of more than 40, the closest eight.

    >>> nearest("netwrok", ["network", "random"])
    'did you mean "network"?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    if len(names) > 40:
        close = difflib.get_close_matches(name, names, n=8, cutoff=0)
        return f"the closest of {len(names)} names are {', '.join(close)}"
    return f"choose one of {', '.join(names)}" if names else "none is available"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the memory of the machine or of a GPU is full; does not load torch."""
    if isinstance(error, ImportError | OSError):  # of a library, which is mapped into memory
        return "failed to map segment" in str(error)
    texts = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
    )


def is_out_of_threads(error: BaseException) -> bool:
    """Return whether the system refused to start a thread."""
    return isinstance(error, RuntimeError) and str(error) == "can't start new thread"
