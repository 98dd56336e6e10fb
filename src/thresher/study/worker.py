"""A worker process: read tasks from standard input, run them, write outcomes to a pipe.

`python -m thresher.study.worker FD PARENT THREADS`, started by `local.py`. The output of a task
goes to its own log. Workers die with the study, however it dies; otherwise a task could be run
twice at the same time.
"""

import dataclasses
import itertools
import json
import os
import sys
from pathlib import Path

from thresher.distributed.launch import die_with_parent
from thresher.startup import QuickEnd, finish_triton, skip_pandas
from thresher.study.tasks import StudyTask
from thresher.training.gpu_streams import connect_early


def main() -> None:
    ended = QuickEnd()
    replies, parent, threads = (int(argument) for argument in sys.argv[1:4])
    os.set_inheritable(replies, False)
    die_with_parent(parent)  # before the imports below, which take seconds
    first = sys.stdin.readline()
    task = StudyTask.from_json(json.loads(first)["task"]) if first else None
    if task is not None and task.kind == "train":
        connect_early(task.settings.get("device", "auto"), task.workers)
    from thresher.study.perform import attempt_with_remarks, redirect_output
    from thresher.training.sharing import sharing

    skip_pandas()
    finish_triton()  # a task may import parts of it, which no other thread may do meanwhile
    with sharing(steps=True):
        for line in itertools.chain([first], iter(sys.stdin.readline, "")) if first else ():
            order = json.loads(line)
            redirect_output(Path(order["log"]))
            if order["gpus"]:  # for the processes of a task with several workers
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order["gpus"])
            outcome = attempt_with_remarks(StudyTask.from_json(order["task"]), threads)
            if outcome.detail:
                sys.stderr.write(f"{outcome.detail}\n")
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(replies, json.dumps(dataclasses.asdict(outcome)).encode() + b"\n")
    ended.code = 0


if __name__ == "__main__":
    main()
