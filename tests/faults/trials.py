"""Commands that trials end at random moments: how they are started, and what must not remain."""

import os
import subprocess
import sys
import time
from pathlib import Path

from few_steps import SCRIPT
from forks import FRESH, forks_in

LONG = os.environ.get("THRESHER_FAULTS") == "long"
STARTED = os.environ.get("THRESHER_FAULTS") == "started"
"""Whether all signals are sent to new interpreters instead of forks."""
TRIALS = range(20 if LONG else 2)
KILLS = range(20 if LONG else 1)
"""`make kills` makes 20, also in CI."""
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
    "study in one process": ("study run killed.toml --out {out} --executor in-process", ""),
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
COMMAND_STUDY = f"""
seeds = 1
metric = "steps"
[base]
command = "{{python}} -I -S '{SCRIPT}' {{out}} {{seed}} {{rate}}"
[grid]
rate = [1, 2]
[executor]
workers = 2
"""


def starts_others(words: str) -> bool:
    """Return whether a command runs its work in other processes, which may start new ones."""
    return "--workers" in words or ("killed" in words and "in-process" not in words)


def write_studies(world: Path) -> None:
    """Write the studies of the commands."""
    (world / "killed.toml").write_text(STUDY)
    (world / "killed-command.toml").write_text(COMMAND_STUDY)


def start(words: str, fresh: bool = False, **more: str) -> "subprocess.Popen[str]":
    """Start a command, with `fresh` in new interpreters: these die with it by themselves."""
    return subprocess.Popen(
        [sys.executable, "-m", "thresher", *words.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "KILL_TRIAL": os.getcwd(), **({FRESH: "1"} if fresh else {}), **more},
    )


def seconds_of(words: str) -> float:
    """Run a command and return how long it takes once the fork server has started."""
    assert start("--version").wait(300) == 0
    begin = time.monotonic()
    whole = start(words)
    assert whole.wait(300) == 0, whole.communicate()[1]
    return time.monotonic() - begin


def processes() -> list[int]:
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


def nothing_is_left(what: str) -> None:
    """Fail if processes run on after `what`."""
    deadline = time.monotonic() + GRACE_S
    while left := processes():
        assert time.monotonic() < deadline, f"{len(left)} processes outlived the {what}"
        time.sleep(0.05)


def unfinished(world: Path) -> list[Path]:
    """Return the files that were being written."""
    return [path for path in world.rglob(".*") if path.suffix in (".tmp", ".partial")]
