"""`from quick_tiny import _quick_tiny` in a file of tests makes "tiny" mean `QuickNetwork` there
and in the processes that are forked for it."""

from collections.abc import Iterator

import pytest

from forks import QUICK_TINY
from quick_network import NAME
from thresher.models.registry import MODELS


@pytest.fixture(scope="module", autouse=True)
def _quick_tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS.built_in, "tiny", NAME)
        patch.setenv(QUICK_TINY, "1")
        yield
