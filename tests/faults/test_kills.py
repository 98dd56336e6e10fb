"""Kill a command at random moments and repeat it: it ends as if it had never been killed.

`THRESHER_FAULTS=long` (`make faults`) makes 20 trials of each kind instead of two.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forks import FRESH, forks_in

pytest_plugins = ["world"]
pytestmark = pytest.mark.slow  # starts interpreters

LONG = os.environ.get("THRESHER_FAULTS") == "long"
TRIALS = range(20 if LONG else 2)
GRACE_S = 15.0
START_S = 6.0
"""About how much longer a command takes in new interpreters than in forks."""

TRAIN = "train --data pack --epochs 4 --batch-size 20 --device cpu --threads 1 --out {out}"
COMMANDS = {
    "pack": ("data pack images {out} --processes 2", ""),
    "export": ("data export pack {out}", ""),
    "embed": ("embed --data pack --run run --batch-size 8 --out {out}", ""),
    "select": ("select network --data pack --features features --out {out}.parquet", ""),
    "train": (f"{TRAIN} --checkpoint-every 4", "--resume"),
    "train on two workers": (f"{TRAIN} --workers 2 --checkpoint-every 4", "--resume"),
    "study": ("study run killed.toml --out {out}", ""),
    "study of a command": ("study run killed-command.toml --out {out}", ""),
}
"""The words, and those added when the command is repeated."""

STUDY = """
seeds = 1
[base]
data = "pack"
epochs = 4
batch_size = 20
checkpoint_every = 4
device = "cpu"
threads = 1
[grid]
lr = [0.05, 0.1]
[executor]
workers = 2
"""
COMMAND_STUDY = """
seeds = 1
metric = "steps"
[base]
command = "{python} -I -S own.py {seed} {rate} {out}"
[grid]
rate = [1, 2]
[executor]
workers = 2
"""
OWN = """
import json, os, sys, time
seed, rate, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
state = os.path.join(out, "state")
step = int(open(state).read()) if os.path.exists(state) else 0
while step < 15:
    step += 1
    time.sleep(0.1)
    with open(state + ".new", "w") as file:
        file.write(str(step))
    os.replace(state + ".new", state)
with open(os.path.join(out, "result.json"), "w") as file:
    json.dump({"steps": 100 * seed + 10 * rate + step}, file)
"""


def _start(words: str, fresh: bool = False) -> "subprocess.Popen[str]":
    """Start a command, with `fresh` in new interpreters: these die with it by themselves."""
    return subprocess.Popen(
        [sys.executable, "-m", "thresher", *words.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KILL_TRIAL": os.getcwd(), **({FRESH: "1"} if fresh else {})},
    )


def _processes() -> list[int]:
    """Return the processes of this trial that run, except this one."""
    ids = forks_in(Path.cwd())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if f"KILL_TRIAL={os.getcwd()}".encode() in environment.split(b"\0") and state not in b"ZX":
            ids.append(int(entry.name))
    return ids


def _nothing_is_left() -> None:
    deadline = time.monotonic() + GRACE_S
    while left := _processes():
        assert time.monotonic() < deadline, f"{len(left)} processes outlived the kill"
        time.sleep(0.05)


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
    (world / "killed.toml").write_text(STUDY)
    (world / "killed-command.toml").write_text(COMMAND_STUDY)
    (world / "own.py").write_text(OWN)
    assert _start("--version").wait(300) == 0  # the fork server has started
    begin = time.monotonic()
    whole = _start(words.format(out="whole"))
    assert whole.wait(300) == 0, whole.communicate()[1]
    seconds = time.monotonic() - begin
    expected = _result(name, world / "whole")
    for trial in TRIALS:
        moment = random.Random(f"{name} {trial}")
        out = f"out-{trial}"
        # Of commands that start others, every second trial.
        fresh = trial % 2 == 0 and ("workers" in words or name.startswith("study"))
        running = _start(words.format(out=out), fresh)
        time.sleep(moment.uniform(0.2, 1.0) * (seconds + START_S * fresh))
        # The command itself, or any of its workers.
        victim = moment.choice([running.pid, *_processes()])
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(victim, signal.SIGKILL)
        if victim != running.pid:
            running.wait(300)  # a dead worker is reported, or its group restarted
        running.communicate()
        _nothing_is_left()
        if not (running.returncode == 0 and not again):
            repeated = _start(f"{words.format(out=out)} {again}")
            said = repeated.communicate(timeout=300)[1]
            # A command that had finished before the kill refuses to write twice.
            assert repeated.returncode == 0 or "exists already" in said, said
        assert _result(name, world / out) == expected
        hidden = [path for path in world.rglob(".*") if path.suffix in (".tmp", ".partial")]
        assert not hidden, hidden
