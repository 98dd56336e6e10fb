"""Every bad input ends with exit code 2 and one sentence, and leaves nothing behind."""

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import CASES
from damage import Case
from world import SharedWorld, command, tree, working_in

pytest_plugins = ["world"]

NOT_FOR_PEOPLE = re.compile(r"Traceback|Errno|<class|object at 0x|Error\(|[{\[]'")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore what the command line sets in its own process."""
    logger, path = logging.getLogger("thresher"), list(sys.path)
    handlers, level = logger.handlers, logger.level
    yield
    logger.handlers, sys.path[:] = handlers, path
    logger.setLevel(level)


def _parameters() -> list[Any]:
    """Return the cases; three of four are left to the whole suite."""
    slow = [() if n % 4 == 0 else pytest.mark.slow for n in range(len(CASES))]
    return [
        pytest.param(case, marks=marks, id=case.name[:110])
        for case, marks in zip(CASES, slow, strict=True)
    ]


@pytest.mark.timeout(20, func_only=True)
@pytest.mark.parametrize("case", _parameters())
def test_one_sentence(
    case: Case, shared_world: SharedWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    world = shared_world.folder()
    passed = False
    try:
        with working_in(world):
            _one_sentence(case, world, capfd)
        passed = True
    finally:
        if not passed:
            shared_world.discard()
        elif case.damage is not None:
            shared_world.restore(case.target)


def _one_sentence(case: Case, world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if case.damage is not None:
        case.damage(world / case.target)
    before = tree(world)
    capfd.readouterr()
    code = command(*case.words.split(" "))
    printed = capfd.readouterr()
    assert code == 2, printed.err
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("thresher: "), printed.err
    assert not NOT_FOR_PEOPLE.search(lines[0]), printed.err
    assert len(lines[0]) < 800, printed.err
    assert printed.out == ""
    after = tree(world)
    assert after.keys() == before.keys(), "files were left behind, or removed"
    assert after == before, "files were changed"


def test_the_table_covers_every_command() -> None:
    from thresher.cli.commands import COMMANDS

    words = [case.words for case in CASES]
    missed = [c.words for c in COMMANDS if not any(w.startswith(c.words) for w in words)]
    assert not missed
    assert len(CASES) >= 300
