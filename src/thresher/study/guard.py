"""End a process group when the process that started it is gone, however it went.

`python guard.py SECONDS FD`, started by `run_command.py` before the command, which joins the
guard's process group. The guard waits until its standard input is closed: on purpose, or because
its parent was killed. Then it asks the group to end, and kills it after SECONDS or as soon as the
command, which holds the other end of the pipe FD, has ended.

A script without imports from the package: it starts in milliseconds.
"""

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
    select.select([command], [], [], seconds)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
