"""A run in a group of processes on this machine, started and watched from here."""

import json
import tempfile
from pathlib import Path
from typing import Any

from thresher.data.pack import Pack
from thresher.distributed.launch import Stopped, launch
from thresher.errors import ThresherError
from thresher.paths import RunPaths, read_json, write_json
from thresher.training import folder
from thresher.training.config import TrainConfig
from thresher.training.resolved import resolve
from thresher.training.samples import choose


def train_in_group(config: TrainConfig, worker: str = "thresher.training.worker") -> dict[str, Any]:
    """Start `config.workers` processes of the module `worker` and wait for the result.

    What can be refused is refused here, before anything starts.
    """
    done = folder.finished(config)
    if done is not None:
        return done
    folder.admit(config, again=False)
    pack = Pack.open(config.data)
    samples = choose(config, pack)
    resolve(config, samples.count, len(samples.train))
    with tempfile.TemporaryDirectory(prefix="thresher-run-") as temporary:
        order, answer = Path(temporary) / "config.json", Path(temporary) / "answer.json"
        write_json(order, config.to_dict())
        try:
            launch(config.workers, ["-m", worker, str(order), str(answer)], config.max_restarts)
        except Stopped:
            pass
        except ThresherError:
            if not answer.exists():
                raise
        said = read_json(answer, "worker's answer") if answer.exists() else {}
    if "error" in said:
        raise ThresherError(*said["error"])
    if "result" in said:
        return said["result"]
    result = RunPaths(Path(config.out)).result
    if result.exists():
        return read_json(result, "run's result")
    raise ThresherError(
        f"the run in {config.out} was stopped while it was starting", "start it again with --resume"
    )


def work(arguments: list[str], train: Any) -> None:
    """The body of a worker: read the order, call `train`, leave the answer of rank 0.

    A ThresherError is an answer, not a crash: the agent must not start the group again for it.
    """
    from thresher.distributed.group import end, place

    order, answer = map(Path, arguments)
    config = TrainConfig.from_dict(json.loads(order.read_text()))
    first = place().rank == 0
    try:
        said: dict[str, Any] = {"result": train(config)}
    except ThresherError as error:
        said = {"error": [error.what, error.fix]}
    if first or "error" in said:
        write_json(answer, said)
    end(0)
