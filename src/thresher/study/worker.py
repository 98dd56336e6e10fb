"""A worker process: reads tasks from standard input, does them, answers on a pipe.

`python -m thresher.study.worker FD PARENT THREADS`, started by `local.py`. What a task prints goes
to its own log. When the study dies, however it dies, its workers die at once: a task that went on
unseen could be run twice to the end.
"""

import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path

from thresher.distributed.launch import die_with_parent


def main() -> None:
    replies, parent, threads = (int(argument) for argument in sys.argv[1:4])
    os.set_inheritable(replies, False)
    die_with(parent)
    from thresher.study.executors import attempt
    from thresher.study.tasks import from_json

    for line in sys.stdin:
        order = json.loads(line)
        print_to(Path(order["log"]))
        ended = attempt(from_json(order["task"]), threads)
        if ended.detail:
            print(ended.detail, file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(replies, json.dumps(dataclasses.asdict(ended)).encode() + b"\n")


def die_with(parent: int) -> None:
    """The kernel kills this process with its parent; elsewhere than on Linux, look each second."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def print_to(log: Path) -> None:
    """Send both outputs, those of libraries and children as well, to the end of `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


if __name__ == "__main__":
    main()
