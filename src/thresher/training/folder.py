"""A run's folder: one run at a time, and nothing finished or begun is overwritten."""

import contextlib
import os
from pathlib import Path

from thresher.errors import AlreadyExistsError, ThresherError
from thresher.locks import exclusive_lock
from thresher.paths import RunPaths, read_json
from thresher.training.config import MAY_CHANGE, TrainConfig
from thresher.training.result import RunResult


def finished(config: TrainConfig) -> RunResult | None:
    """Return the result of a finished run when resuming it, None if there is none.

    Raises:
        AlreadyExistsError: The run is finished and `config.resume` is False.
    """
    paths = RunPaths(Path(config.out))
    if not paths.result.exists():
        return None
    if not config.resume and not restarted():
        raise AlreadyExistsError(
            f"{config.out} holds a finished run",
            "choose another folder, or set `resume` to return its result",
        )
    _same_run(config, paths)
    return RunResult.load(config.out)


def restarted() -> bool:
    """Return whether torch's elastic agent has restarted this group."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def admit(config: TrainConfig) -> None:
    """Refuse a folder that holds something else than this run."""
    root = Path(config.out)
    paths = RunPaths(root)
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"{root} is a file", "choose another folder")
    if paths.config.exists():
        if not config.resume and not restarted():
            raise AlreadyExistsError(
                f"{root} holds a run that was begun",
                "set `resume` to continue it, or choose another folder",
            )
        _same_run(config, paths)
    elif root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir()):
        raise AlreadyExistsError(f"{root} holds other files", "choose an empty folder")


def locked(root: Path) -> contextlib.AbstractContextManager[int]:
    """Hold the run's folder; a second run into it raises BusyError."""
    return exclusive_lock(
        RunPaths(root).lock,
        f"another run is writing to {root}",
        "wait for it, or choose another folder",
    )


def _same_run(config: TrainConfig, paths: RunPaths) -> None:
    """A run is resumed with what it was begun with, but for what does not change its path."""
    saved = read_json(paths.config, "run's configuration").get("config", {})
    for name, now in config.to_dict().items():
        if name in MAY_CHANGE or name not in saved or saved[name] == now:
            continue
        flag = name.replace("_", "-")
        raise ThresherError(
            f"the run in {config.out} was begun with --{flag} {saved[name]}, not {now}",
            "resume it as it was, or choose another folder",
        )
