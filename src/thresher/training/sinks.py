"""Places beside `metrics.jsonl` that a run reports to: TensorBoard, Weights & Biases, MLflow.

Each is one small class. Their packages are optional and imported when a run begins. The ids of
remote runs are kept in the run's folder, so that a resumed run continues them.
"""

import abc
import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from thresher.errors import MissingDependencyError, ThresherError
from thresher.paths import RunPaths, read_json, write_json

SinkName = Literal["tensorboard", "wandb", "mlflow"]
PROJECT = "thresher"
"""Project of Weights & Biases and experiment of MLflow, unless the environment names one."""
MOST_IN_A_BATCH = 500
"""Metrics that are sent to MLflow at once; its servers take at most 1,000."""


class Sink(abc.ABC):
    """Receives the metrics of a run, on its first worker."""

    @abc.abstractmethod
    def __init__(self, run: Path, step: int, options: Mapping[str, Any]) -> None:
        """Open the sink for the run in the folder `run`, which continues after `step`."""

    @abc.abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Receive numbers of a step, by names such as `epoch/accuracy`."""

    def flush(self) -> None:  # noqa: B027 - most sinks send by themselves
        """Send what was kept back."""

    @abc.abstractmethod
    def close(self) -> None:
        """Send everything and end."""


class TensorBoardSink(Sink):
    """Writes event files into `tensorboard/` in the run's folder."""

    def __init__(self, run: Path, step: int, options: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events after the checkpoint are written again.
        purge = step + 1 if step else None
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink(Sink):
    """Logs to Weights & Biases; WANDB_PROJECT, WANDB_MODE and its other variables apply."""

    def __init__(self, run: Path, step: int, options: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_kept_id(run, "wandb", lambda: secrets.token_hex(4)),
            resume="allow",
            dir=run,
            name=run.name,
            config=dict(options),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # A resumed run goes back to its checkpoint; wandb's own steps cannot.
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class MlflowSink(Sink):
    """Logs to MLflow; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME apply."""

    def __init__(self, run: Path, step: int, options: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = MlflowClient()
        self._kept: list[Any] = []
        texts = {name: str(value) for name, value in options.items() if value is not None}

        def create() -> str:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            made: str = self._client.create_run(experiment, run_name=run.name).info.run_id
            self._client.log_batch(made, params=[Param(k, v[:500]) for k, v in texts.items()])
            return made

        self._id = _kept_id(run, "mlflow", create)
        self._client.update_run(self._id, status="RUNNING")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._kept += [self._metric(name, value, now, step) for name, value in values.items()]
        if len(self._kept) >= MOST_IN_A_BATCH:
            self.flush()

    def flush(self) -> None:
        while self._kept:
            self._client.log_batch(self._id, metrics=self._kept[:MOST_IN_A_BATCH])
            del self._kept[:MOST_IN_A_BATCH]

    def close(self) -> None:
        self.flush()
        self._client.set_terminated(self._id)


SINKS: dict[SinkName, type[Sink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}


def check_sinks(names: Collection[SinkName]) -> None:
    """Raise MissingDependencyError if the package of a sink is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(
                f"`log` {name} needs the package {name}", f"pip install {name}"
            )


def open_sinks(
    names: Collection[SinkName], run: Path, step: int, options: Mapping[str, Any]
) -> dict[SinkName, Sink]:
    """Open the sinks of a run.

    Raises:
        ThresherError: One cannot be opened: its server cannot be reached, or nobody is logged in.
    """
    opened: dict[SinkName, Sink] = {}
    for name in names:
        try:
            opened[name] = SINKS[name](run, step, options)
        except Exception as error:
            for sink in opened.values():
                sink.close()
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            fix = "log in and check its settings, or leave it out of `log`"
            raise ThresherError(f"{name} cannot be opened: {reason}", fix) from error
    return opened


def _kept_id(run: Path, name: str, make: Callable[[], str]) -> str:
    """Return the id of this run at a service: the one in its folder, or a new one, kept there."""
    file = RunPaths(run).log
    ids = read_json(file, "file of ids") if file.exists() else {}
    if name not in ids:
        ids[name] = make()
        write_json(file, ids)
    return str(ids[name])
