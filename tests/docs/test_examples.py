"""Every public name has an example in its docstring, and the examples run."""

import doctest
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import thresher

NAMES = [name for name in thresher.__all__ if not name.startswith("_")]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_examples_of_a_docstring_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: Path
) -> None:
    """Of a name, its methods, or a base class that explains several of them together."""
    value = getattr(thresher, name)
    examples = [
        test
        for item, owner in _documented(value)
        for test in doctest.DocTestFinder(recurse=False).find(
            item, owner, sys.modules[item.__module__]
        )
        if test.examples
    ]
    assert examples, f"thresher.{name} has no example in its docstring"
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def _documented(value: Any) -> list[tuple[Any, str]]:
    """Return a function, or a class with its public methods and nearest base, with their names."""
    if not inspect.isclass(value):
        return [(value, value.__name__)]
    listed: list[tuple[Any, str]] = [
        (cls, cls.__name__) for cls in value.__mro__[:2] if cls.__module__ != "builtins"
    ]
    for key in vars(value):
        member = inspect.unwrap(getattr(value, key))
        if not key.startswith("_") and inspect.isroutine(member):
            listed.append((member, f"{value.__name__}.{key}"))
    return listed
