"""Run one function in a group of worker processes, and read its answer.

Each worker is `python -m thresher.distributed.worker TARGET ORDER ANSWER`. TARGET is
`package.module:function`, a function of one JSON value that returns one; the file ORDER holds its
argument. Rank 0 writes {"result": value} to the file ANSWER. A rank that meets a ThresherError
writes {"error": …} instead and exits with code 0 too: restarting the group would not help.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from thresher import errors
from thresher.distributed.group import end, placement
from thresher.distributed.launch import (
    LOG_LEVEL,
    PARENT,
    GroupStopped,
    announce,
    die_with_parent,
    launch,
)
from thresher.paths import read_json, scratch_folder, write_json
from thresher.plugins import load_attribute
from thresher.startup import skip_pandas

Runner = Callable[[Sequence[str]], object]
"""Runs a command as a group of processes."""


def run_in_group(target: str, order: Any, workers: int, max_restarts: int = 3) -> Any:
    """Call a function in `workers` processes on this machine and return what rank 0 returned.

    The group is restarted up to `max_restarts` times when a worker dies. For the rest, see
    `call_in_group`.
    """
    return call_in_group(target, order, lambda argv: launch(workers, argv[1:], max_restarts))


def call_in_group(target: str, order: Any, run: Runner) -> Any:
    """Call a function in every rank of the group that `run` starts; return the value of rank 0.

    `target` is `package.module:function`, a function of one JSON value that returns one, and
    `order` its argument. A ThresherError of a worker is raised here, with the same class, message
    and parameter; GroupStopped means that a signal stopped the group before it had an answer.
    """
    with scratch_folder("group") as folder:
        order_file, answer = folder / "order.json", folder / "answer.json"
        write_json(order_file, order)
        words = ["-m", "thresher.distributed.worker", target, str(order_file), str(answer)]
        try:
            run([sys.executable, *words])
        except (GroupStopped, errors.ThresherError):
            # A rank that raised a ThresherError wrote it down; the others then fail or hang.
            if not answer.exists():
                raise
        return read_answer(answer)


def main(arguments: list[str]) -> None:
    """Run a worker; ends the process."""
    # First, because the function's imports take seconds in which the parent may die.
    parent = os.environ.pop(PARENT, None)
    die_with_parent(None if parent is None else int(parent))
    announce()
    level = int(os.environ.get(LOG_LEVEL, logging.WARNING))
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("thresher").setLevel(level)
    target, order, answer = arguments
    reply: dict[str, object]
    try:
        function = load_attribute(target, "worker function")
        skip_pandas()
        reply = {"result": function(read_json(order, "worker's order"))}
    except errors.ThresherError as error:
        kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
        reply = {"error": [kind, error.what, error.fix, error.parameter]}
    except KeyboardInterrupt:  # Ctrl-C reaches all processes of a terminal; the agent says so
        end(130)
    except BaseException:
        traceback.print_exc()
        end(1)
    if placement().rank == 0 or "error" in reply:
        write_json(answer, reply)
    end(0)


def read_answer(path: Path) -> Any:
    """Return the value that a worker wrote, or raise the error that it met."""
    reply = read_json(path, "worker's answer")
    if "error" in reply:
        kind, *values = reply["error"]
        raise getattr(errors, kind)(*values)
    return reply["result"]


if __name__ == "__main__":
    main(sys.argv[1:])
