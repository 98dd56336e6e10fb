"""Run the command of a trial, and turn what it reports into the trial's result.

The command writes to the folder `output` of the trial. Its result is checked and only then written
to the trial's own `result.json`, so a trial is never taken for finished because of a result that
is incomplete or wrong. An interrupted command is started again with the same folder.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from thresher.data.selection import Selection
from thresher.environment import hardware
from thresher.errors import ThresherError
from thresher.locks import exclusive_lock
from thresher.paths import RUN_FORMAT, RunPaths, disk_errors, write_json
from thresher.stopping import Stop
from thresher.study import guard
from thresher.study.reported import read_reported
from thresher.study.tasks import StudyTask, TaskStopped, killed_from_outside
from thresher.version import __version__

END_SECONDS = 20.0
"""Time that a command has to end after SIGTERM, before it is killed."""


class CommandError(ThresherError):
    """The command of a trial did not give a result."""

    def __init__(self, what: str, log: Path, killed: bool = False) -> None:
        super().__init__(f"{what}; its log is {log}")
        self.log = log
        self.killed = killed
        """Whether a signal from outside ended it."""


def run_command(task: StudyTask, threads: int | None = None) -> None:
    """Run the command of a trial and write the trial's result.

    Args:
        task: A task of kind "command".
        threads: OMP_NUM_THREADS of the command, if it is not set already.

    Raises:
        CommandError: The command failed, or its result is missing or wrong.
        TaskStopped: This process was asked to end; the command was ended first.
    """
    paths = RunPaths(task.out)
    out, log = paths.output, paths.command_log
    arguments: list[str] = task.settings["arguments"]
    environment = dict(os.environ)
    if threads is not None:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    # Waits for the guard of a study that was killed a moment ago to end its command.
    with exclusive_lock(paths.lock, f"{task.name} is being run", wait=True) as lock:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            RunPaths(out).result.unlink(missing_ok=True)
        selection = task.settings.get("selection")
        used = {} if selection is None else {"selection": Selection.load(selection).digest}
        begin = time.monotonic()
        with Stop(lambda _: TaskStopped(task.name), signal.SIGTERM):
            code = _run(arguments, environment, log, lock)
        if -code in (signal.SIGUSR1, signal.SIGUSR2):
            # SLURM's warning of the time limit, which went to every process of the job.
            raise TaskStopped(task.name)
        if code:
            killed = killed_from_outside(code)
            how = (
                f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
            )
            raise CommandError(f"the command {how}{_last_line(log)}", log, killed)
        try:
            reported = read_reported(out, task.settings["metrics"])
        except ThresherError as error:
            raise CommandError(str(error), log) from None
        result = {"seconds": time.monotonic() - begin, **reported}
        own = {
            "format": RUN_FORMAT,
            "status": "finished",
            "command": arguments,
            "hardware": hardware("cpu"),
            "versions": {"thresher": __version__},
            **used,
        }
        write_json(paths.result, {**result, **own})


def _last_line(log: Path) -> str:
    """Return the last line that a command printed, in brackets; "" if it printed nothing."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        lines = file.read().decode("utf-8", "replace").splitlines()
    last = next((line.strip() for line in reversed(lines) if line.strip()), "$")
    return "" if last.startswith("$") else f" ({last if len(last) <= 160 else f'{last[:157]}...'})"


def _run(arguments: list[str], environment: dict[str, str], log: Path, lock: int) -> int:
    """Run the command in a process group with a guard; return its exit code."""
    with open(log, "ab") as file, contextlib.ExitStack() as ends:
        file.write(f"$ {shlex.join(arguments)}\n".encode())
        file.flush()
        alive, held = os.pipe()
        ends.callback(os.close, alive)
        ends.callback(os.close, held)
        # The guard holds the lock, too: a new attempt must wait until it has done its work.
        guarding = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(END_SECONDS), str(alive)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(alive, lock),
            process_group=0,
        )
        process = None
        try:
            assert guarding.stdout is not None
            guarding.stdout.read(1)
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(held,),
                process_group=guarding.pid,
            )
            ends.close()
            return process.wait()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CommandError(f'"{arguments[0]}" cannot be run: {reason}', log) from None
        finally:
            ends.close()
            _end(guarding)
            if process is not None:
                process.wait()


def _end(guarding: "subprocess.Popen[bytes]") -> None:
    """Have the guard end what is left of the process group."""
    assert guarding.stdin is not None
    assert guarding.stdout is not None
    guarding.stdin.close()
    guarding.stdout.close()
    # Not reaped yet, so that its id, that of the group, cannot belong to another process.
    os.waitid(os.P_PID, guarding.pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(guarding.pid, signal.SIGKILL)  # in case the guard itself was killed
    guarding.wait()
