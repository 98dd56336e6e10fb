"""End a process group when the process that started it is gone, however it went.

`python guard.py SECONDS FD`, started by `run_command.py` before the command, which joins the
guard's process group. The guard waits until its standard input is closed: on purpose, or because
its parent was killed. Then it asks the group to end, and kills it after SECONDS or as soon as the
command, which holds the other end of the pipe FD, has ended. After SECONDS it also kills what the
group has started in sessions of its own, as torchrun does with its workers.

A script without imports from the package: it starts in milliseconds.
"""

import contextlib
import os
import select
import signal
import sys


def main() -> None:
    seconds, command = float(sys.argv[1]), int(sys.argv[2])
    # SLURM sends SIGUSR1 or SIGUSR2 to every process of a job before its time limit.
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    os.write(1, b"\n")  # ready
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    if not select.select([command], [], [], seconds)[0]:
        for process in started():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
    os.killpg(0, signal.SIGKILL)


def started() -> list[int]:
    """Return the processes of this group but this one, then those that they have started."""
    parents, members = {}, []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            _, parent, group = file.read().rpartition(b")")[2].split()[:3]
            parents[int(name)] = int(parent)
            if int(group) == os.getpgrp() and int(name) != os.getpid():
                members.append(int(name))
    for process in members:  # grows
        members += [p for p, parent in parents.items() if parent == process and p not in members]
    return members


if __name__ == "__main__":
    main()
