"""A worker process: read tasks from standard input, run them, write outcomes to a pipe.

`python -m thresher.study.worker FD PARENT THREADS`, started by `local.py`. The output of a task
goes to its own log. Workers die with the study, however it dies; otherwise a task could be run
twice at the same time.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

from thresher.distributed.launch import die_with_parent


def main() -> None:
    replies, parent, threads = (int(argument) for argument in sys.argv[1:4])
    os.set_inheritable(replies, False)
    die_with_parent(parent)  # before the imports below, which take seconds
    from thresher.study.perform import attempt, redirect_output
    from thresher.study.tasks import StudyTask
    from thresher.training.sharing import sharing

    with sharing(steps=True):
        for line in sys.stdin:
            order = json.loads(line)
            redirect_output(Path(order["log"]))
            if order["gpus"]:  # for the processes of a task with several workers
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order["gpus"])
            outcome = attempt(StudyTask.from_json(order["task"]), threads)
            if outcome.detail:
                sys.stderr.write(f"{outcome.detail}\n")
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(replies, json.dumps(dataclasses.asdict(outcome)).encode() + b"\n")


if __name__ == "__main__":
    main()
