"""Commands of studies that end early: what they started ends too, and the study goes on later."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_studies import content, script

from thresher.paths import write_text
from thresher.study import guard, run_command
from thresher.study.analysis import analyse
from thresher.study.study import Study
from thresher.study.tasks import TaskStopped
from thresher.study.toml import dumps

LONG = """
import os, subprocess, sys, time
out = sys.argv[1]
if os.path.exists(out + "/begun"):
    open(out + "/result.json", "w").write('{"accuracy": 0.5}')
    sys.exit()
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open(out + "/pids.tmp", "w").write(f"{os.getpid()} {child.pid}")
os.rename(out + "/pids.tmp", out + "/begun")
time.sleep(600)
"""
RUN = str(Path(__file__).with_name("run_study.py"))


def _begin(tmp_path: Path) -> tuple["subprocess.Popen[bytes]", Path, list[int]]:
    """Start a study of one long command; return it, its folder and the command's processes."""
    file, out = tmp_path / "study.toml", tmp_path / "out"
    command = script(tmp_path, LONG, "{out} {seed}")
    local = {"kind": "local", "workers": 1}
    write_text(file, dumps(content(command, seeds=1, executor=local)))
    process = subprocess.Popen([sys.executable, RUN, str(file), str(out)])
    deadline = time.monotonic() + 60
    while not (begun := list(out.glob("trials/*/output/begun"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, out, [int(pid) for pid in begun[0].read_text().split()]


def _gone(pids: list[int], seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(_runs, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.slow  # starts a study and its worker
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_study_takes_its_commands_with_it(tmp_path: Path, number: int) -> None:
    process, out, pids = _begin(tmp_path)
    process.send_signal(number)
    process.wait(30)
    assert _gone(pids), "the command outlived the study"
    study = Study.open(out)
    assert study.status().count("waiting") == 1
    # The command finds what it wrote in the same folder.
    assert study.run("in-process").complete
    assert analyse(study).cells[0].mean == 50.0


STOPS_THE_STUDY = """
import os, signal, sys, time
open(sys.argv[1] + "/begun", "w").close()
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""


def test_a_signal_stops_a_study_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the trial that runs, also if Python drops what the signal raised."""

    class Dropped(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if str(self.args).endswith(" '0']") and not dropped:  # the command of the first seed
                dropped.append(True)
                with contextlib.suppress(TaskStopped):
                    time.sleep(20)
            return super().wait(timeout)

    dropped: list[bool] = []
    command = script(tmp_path, STOPS_THE_STUDY, "{out} {seed}")
    study = Study.from_dict(content(command), tmp_path / "out")
    for popen in (subprocess.Popen, Dropped):
        monkeypatch.setattr(run_command.subprocess, "Popen", popen)
        with pytest.raises(KeyboardInterrupt):
            study.run()
        assert len(list((tmp_path / "out").glob("trials/*/output/begun"))) == 1
    assert dropped
    assert study.status().count("waiting") == 2


DETACHED = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def test_processes_in_sessions_of_their_own_end_with_the_command() -> None:
    """As torchrun's workers: those that do not heed SIGTERM outlived it, and held the GPU."""
    alive, held = os.pipe()
    watching = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, "0.1", str(alive)],
        stdin=subprocess.PIPE,
        pass_fds=[alive],
        process_group=0,
    )
    command = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", DETACHED],
        stdout=subprocess.PIPE,
        pass_fds=[held],
        process_group=watching.pid,
    )
    os.close(alive)
    os.close(held)
    assert command.stdout is not None
    pids = [int(pid) for pid in command.stdout.readline().split()]
    watching.communicate()
    command.communicate()
    assert _gone(pids, 5), "a process outlived the command"


@pytest.mark.slow  # starts a study and its worker
def test_a_killed_command_leaves_nothing_behind(tmp_path: Path) -> None:
    process, out, pids = _begin(tmp_path)
    os.kill(pids[0], signal.SIGKILL)
    process.wait(30)
    assert _gone(pids), "a process of the command outlived it"
    study = Study.open(out)
    (failed,) = study.status().failed
    assert "the command was ended by SIGKILL; its log is" in failed.error
    # It did not fail by itself, so it is run again.
    assert study.run("in-process").complete
