"""The worker entry point: answers, errors and deaths."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from thresher.distributed.launch import GroupStopped
from thresher.distributed.worker import read_answer, run_in_group
from thresher.errors import InvalidValueError, ThresherError
from thresher.paths import write_json

HERE = str(Path(__file__).parent)
AGENT = f"{HERE}/sleeping_agent.py"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import this very file."""
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, known]))


def total(order: dict[str, Any]) -> float:
    """Sum over the group of what each rank brings."""
    import torch

    from thresher.distributed.group import join

    group = join("cpu")
    value = torch.tensor([float(order["times"] * (group.rank + 1))])
    return float(group.all_reduce_sum(value).item())


def refuse(order: Any) -> None:
    from thresher.distributed.group import join

    join("cpu").on_first(lambda: _refuse())


def _refuse() -> None:
    raise InvalidValueError("momentum must be in [0, 1), got 2", "use less", "momentum")


def crash(order: Any) -> None:
    from thresher.distributed.group import join

    join("cpu").gather(None)
    raise ZeroDivisionError("as planned")


def sleep(folder: str) -> None:
    (Path(folder) / f"{os.environ['RANK']}-{os.getpid()}").touch()
    time.sleep(120)


@pytest.mark.slow
def test_the_answer_of_rank_0_comes_back() -> None:
    assert run_in_group("test_worker:total", {"times": 2}, workers=2) == 6.0


@pytest.mark.slow
def test_an_error_keeps_its_class_and_parameter() -> None:
    with pytest.raises(InvalidValueError, match="momentum must be in") as caught:
        run_in_group("test_worker:refuse", None, workers=2)
    assert (caught.value.fix, caught.value.parameter) == ("use less", "momentum")


@pytest.mark.slow
def test_an_unexpected_error_shows_its_traceback_and_ends_the_group(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ThresherError, match="ended with code 1"):
        run_in_group("test_worker:crash", None, workers=2, max_restarts=0)
    printed = capfd.readouterr().err
    assert "ZeroDivisionError: as planned" in printed
    assert "terminate called" not in printed


def test_an_unknown_function_is_an_answer(tmp_path: Path) -> None:
    order, answer = tmp_path / "order.json", tmp_path / "answer.json"
    write_json(order, None)
    words = ["thresher.distributed.worker", "test_worker:nothing", str(order), str(answer)]
    subprocess.run([sys.executable, "-m", *words], check=True)
    with pytest.raises(ThresherError, match='has no worker function "nothing"'):
        read_answer(answer)


def _of_group(folder: Path) -> list[int]:
    """Process ids of the workers that were started for `folder`."""
    ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"WORKER_TEST={folder}".encode() in environment:
            ids.append(int(entry.name))
    return ids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_group_though_python_drops_its_exception(
    tmp_path: Path,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    class Thing:
        pass

    def monitor(*arguments: Any) -> Any:
        if len(list(tmp_path.glob("*-*"))) == 2 and not sent:
            thing = Thing()
            reference = weakref.ref(thing, lambda _: signal.raise_signal(number))
            sent.append(number)
            del thing, reference
        return real(*arguments)

    sent: list[int] = []
    real = LocalElasticAgent._monitor_workers
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", monitor)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    before = [signal.getsignal(n) for n in range(1, signal.SIGUSR2)]
    with pytest.raises(GroupStopped):
        run_in_group("test_worker:sleep", str(tmp_path), workers=2)
    assert sent
    assert [signal.getsignal(n) for n in range(1, signal.SIGUSR2)] == before
    assert not list((tmp_path / "temporary").glob("*elastic*"))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_workers_die_with_an_agent_that_is_killed(tmp_path: Path, moment: str) -> None:
    for trial in range(3):
        folder = tmp_path / str(trial)
        folder.mkdir()
        environment = {**os.environ, "WORKER_TEST": str(folder)}
        agent = subprocess.Popen([sys.executable, AGENT, str(folder)], env=environment)
        deadline = time.monotonic() + 60
        while (moment == "starting" and not _of_group(folder)) or (
            moment == "running" and len(list(folder.iterdir())) < 2
        ):
            assert agent.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.random() * 0.2)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        while _of_group(folder):
            assert time.monotonic() < deadline, "workers outlived their agent"
            time.sleep(0.05)
