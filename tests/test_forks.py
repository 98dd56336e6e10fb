"""The fork server of the tests has loaded what its children are to start with."""

import sys
from typing import Any

from forks import FORKS, SERVER


def _loaded(found: Any) -> None:
    found.put(set(sys.modules))


def test_the_server_has_loaded_every_module() -> None:
    """It ignores modules that it does not find: commands would only be slower."""
    found = FORKS.Queue()
    child = FORKS.Process(target=_loaded, args=(found,))
    child.start()
    loaded = found.get(timeout=120)
    child.join()
    assert set(SERVER._preload_modules) <= loaded
