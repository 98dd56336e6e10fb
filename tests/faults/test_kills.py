"""Kill a command at random moments and repeat it: it ends as if it had never been killed.

`THRESHER_FAULTS=long` (`make kills`) makes 20 trials of each kind instead of one.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from trials import (
    COMMANDS,
    KILLS,
    START_S,
    nothing_is_left,
    processes,
    seconds_of,
    start,
    starts_others,
    unfinished,
    write_studies,
)

pytest_plugins = ["world"]
pytestmark = pytest.mark.slow  # starts interpreters


def _weights(path: Path) -> str:
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def _result(name: str, out: Path) -> object:
    """Return what two undisturbed runs of a command have in common."""
    if name == "pack":
        return json.loads((out / "pack.json").read_text())["fingerprint"]
    if name == "export":
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return [(str(path.relative_to(out)), path.read_bytes()) for path in files]
    if name == "embed":
        return (out / "features.npy").read_bytes()
    if name == "select":
        import pyarrow.parquet as pq

        return pq.read_table(f"{out}.parquet").to_pydict()["keep"]
    if name.startswith("study"):
        keys = ("accuracy", "loss", "steps")
        results = {path.parent.name: path.read_text() for path in out.glob("trials/*/result.json")}
        return {trial: [json.loads(text).get(k) for k in keys] for trial, text in results.items()}
    return _weights(out)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_repeated(world: Path, name: str) -> None:
    words, again = COMMANDS[name]
    write_studies(world)
    seconds = seconds_of(words.format(out="whole"))
    expected = _result(name, world / "whole")
    for trial in KILLS:
        moment = random.Random(f"{name} {trial}")
        out = f"out-{trial}"
        # Of commands that start others, every second trial.
        fresh = trial % 2 == 1 and starts_others(words)
        temporary = world.parent / f"temporary-{trial}"
        temporary.mkdir()
        running = start(words.format(out=out), fresh, TMPDIR=str(temporary))
        time.sleep(moment.uniform(0.2, 1.0) * (seconds + START_S * fresh))
        # The command itself, or any of its workers.
        victim = moment.choice([running.pid, *processes()])
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(victim, signal.SIGKILL)
        if victim != running.pid:
            running.wait(300)  # a dead worker is reported, or its group restarted
        running.communicate()
        nothing_is_left("kill")
        if not (running.returncode == 0 and not again):
            repeated = start(f"{words.format(out=out)} {again}", TMPDIR=str(temporary))
            said = repeated.communicate(timeout=300)[1]
            # A command that had finished before the kill refuses to write twice.
            assert repeated.returncode == 0 or "exists already" in said, said
        assert _result(name, world / out) == expected
        assert not unfinished(world)
