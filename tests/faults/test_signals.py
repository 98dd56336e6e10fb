"""Ask commands to end, at random moments: each ends soon, says so, and leaves nothing half done.

`THRESHER_FAULTS=long` (`make faults`) makes 20 trials of each kind instead of two, half of them in
new interpreters; `THRESHER_FAULTS=started` (`make kills`, in CI) makes two, in new interpreters.
"""

import contextlib
import random
import signal
import time
from pathlib import Path

import pytest
from trials import (
    COMMANDS,
    LONG,
    START_S,
    STARTED,
    TRAIN,
    TRIALS,
    nothing_is_left,
    seconds_of,
    start,
    unfinished,
    write_studies,
)

pytest_plugins = ["world"]
pytestmark = pytest.mark.slow  # starts interpreters

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
END_S = 60.0
"""Time that a command may take to end, on a busy machine; a lost signal takes for ever."""
MORE = {
    "bench": "data bench pack --images 20 --rounds 1 --seconds 0.05",
    "measure": "scale measure --model tiny --data pack --batch-size 4 --seconds-per-batch 0.1 "
    "--image-size 8 --out {out}.json",
    "train for long": TRAIN.replace("--epochs 4", "--epochs 400"),
}
ALL = {name: words for name, (words, _) in COMMANDS.items()} | MORE
RESUMED = ("pack", "embed")
"""Commands that keep what is unfinished, in a folder *.partial, to go on with it."""


def _heeds_signals(pid: int) -> bool:
    """Return whether a process has a handler of SIGTERM."""
    with contextlib.suppress(OSError):  # it has ended
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (caught,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        return bool(caught >> (signal.SIGTERM - 1) & 1)
    return False


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ALL)
def test_a_command_heeds_every_signal(world: Path, name: str) -> None:
    words, saves = ALL[name], name.startswith(("train", "study in one"))
    write_studies(world)
    seconds = 5.0 if name == "train for long" else seconds_of(words.format(out="whole"))
    for trial in TRIALS:
        moment = random.Random(f"{name} {trial}")
        number, twice = moment.choice(SIGNALS), moment.random() < 0.3
        # What happens while torch is imported is also tested in tests/test_stopping.py.
        fresh = STARTED or (LONG and trial % 2 == 1)
        temporary = world / f"temporary-{trial}"
        temporary.mkdir()
        running = start(words.format(out=f"out-{trial}"), fresh, TMPDIR=str(temporary))
        while running.poll() is None and not _heeds_signals(running.pid):
            time.sleep(0.01)  # before, Python itself starts, and ends with a traceback
        time.sleep(moment.random() * (seconds + START_S * fresh))
        running.send_signal(number)
        if twice:
            time.sleep(moment.choice([0.0, 0.01, 0.3]))
            running.send_signal(number)
        said = running.communicate(timeout=END_S)[1]
        assert "Traceback" not in said, said
        # -number: at the very end, after the work.
        ended = {0, 128 + number, -number} | ({128 + signal.SIGTERM} if saves else set())
        assert running.returncode in ended, (running.returncode, number, said)
        nothing_is_left("signal")
        resumed = ".partial" if name in RESUMED else "nothing"
        assert not [path for path in unfinished(world) if path.suffix != resumed]
        assert not list(temporary.glob("*t*e*-*"))  # of Thresher and of torch's agent
