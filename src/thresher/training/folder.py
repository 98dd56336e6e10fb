"""A run's folder: one run at a time, and nothing finished or begun is overwritten."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError
from thresher.paths import RunPaths, disk_errors, read_json
from thresher.training.config import MAY_CHANGE, TrainConfig


def finished(config: TrainConfig) -> dict[str, Any] | None:
    """The result of a finished run when resuming it; refuses to run over one otherwise."""
    paths = RunPaths(Path(config.out))
    if not paths.result.exists():
        return None
    if not config.resume:
        raise ThresherError(
            f"{config.out} holds a finished run",
            "choose another folder, or say --resume to see its result",
        )
    _same_run(config, paths)
    return read_json(paths.result, "run's result")


def admit(config: TrainConfig, again: bool) -> None:
    """Refuse a folder that holds something else. `again`: the group was restarted by its agent."""
    root = Path(config.out)
    paths = RunPaths(root)
    if root.exists() and not root.is_dir():
        raise ThresherError(f"{root} is a file", "choose another folder")
    if paths.config.exists():
        if not config.resume and not again:
            raise ThresherError(
                f"{root} holds a run that was begun",
                "go on with --resume, or choose another folder",
            )
        _same_run(config, paths)
    elif root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir()):
        raise ThresherError(f"{root} holds other files", "choose an empty folder")


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Hold the run's folder; a second run into it is refused. The system frees it at a kill."""
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(RunPaths(root).lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ThresherError(
                f"another run is writing to {root}", "wait for it, or choose another folder"
            ) from None
        yield
    finally:
        os.close(handle)


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
