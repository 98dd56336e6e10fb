"""Every bad input ends with exit code 2 and one sentence, and leaves nothing behind."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import CASES, Case
from world import command

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


def _tree(root: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file, without following links."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            status = path.lstat()
            file = 0 if path.is_dir() else status.st_mtime_ns
            found[str(path.relative_to(root))] = (0 if path.is_dir() else status.st_size, file)
    return found


@pytest.mark.timeout(20, func_only=True)
@pytest.mark.parametrize("case", CASES, ids=[case.name[:110] for case in CASES])
def test_one_sentence(case: Case, world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if case.damage is not None:
        case.damage(world / case.target)
    before = _tree(world)
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
    after = _tree(world)
    assert after.keys() == before.keys(), "files were left behind, or removed"
    assert after == before, "files were changed"


def test_the_table_covers_every_command() -> None:
    from thresher.cli.commands import COMMANDS

    words = [case.words for case in CASES]
    missed = [c.words for c in COMMANDS if not any(w.startswith(c.words) for w in words)]
    assert not missed
    assert len(CASES) >= 300
