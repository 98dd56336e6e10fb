"""Groups of processes for measurements."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from thresher.distributed.group import placement
from thresher.distributed.local_group import gloo_group, run_local
from thresher.distributed.worker import call_in_group
from thresher.errors import InvalidValueError, ThresherError


def add_ranks(order: Any) -> Any:
    """Worker function: the sum of the ranks plus the order, by an all-reduce."""
    import torch
    import torch.distributed as dist

    with gloo_group():
        total = torch.tensor([float(placement().rank)])
        dist.all_reduce(total)
        return total.item() + order["add"]


def refuse(order: Any) -> Any:
    """Worker function that fails."""
    raise InvalidValueError("speed must be at least 1, got 0", "", "speed")


def _call(function: Any, order: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    target = f"test_local_group:{function.__name__}"
    return call_in_group(target, order, lambda argv: run_local(workers, argv))


@pytest.mark.parametrize("workers", [1, 3])
def test_every_rank_is_called_and_the_first_answers(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _call(add_ranks, {"add": 10}, workers, monkeypatch) == 10 + sum(range(workers))


def test_an_error_of_a_rank_is_raised_with_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match="speed must be at least 1, got 0") as raised:
        _call(refuse, None, 2, monkeypatch)
    assert raised.value.parameter == "speed"


@pytest.mark.slow
def test_a_rank_that_fails_is_named_and_the_others_are_killed() -> None:
    script = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('broken'); "
    script += "time.sleep(60)"
    begin = time.monotonic()
    with pytest.raises(ThresherError, match=r"(?s)rank 1 of 2 exited with code 1.*broken"):
        run_local(2, [sys.executable, "-c", script])
    assert time.monotonic() - begin < 30


@pytest.mark.slow
def test_ranks_that_do_not_end_are_killed() -> None:
    with pytest.raises(ThresherError, match="2 ranks did not end within 1 s"):
        run_local(2, [sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=1)
