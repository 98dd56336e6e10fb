"""The examples in the docstrings of the public API run as written."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["data.pack", "data.selection", "data.write", "data.get", "models.registry"]
)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"thresher.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
