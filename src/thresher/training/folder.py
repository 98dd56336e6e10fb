"""The folder of a run: one run at a time, and nothing finished or begun is overwritten."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.digest import file_sha256, order_digest
from thresher.data.pack import Pack
from thresher.distributed.group import Group
from thresher.errors import (
    AlreadyExistsError,
    InvalidValueError,
    NotFoundError,
    ThresherError,
    counted,
)
from thresher.locks import exclusive_lock
from thresher.models.batch_norm_mode import for_batch
from thresher.models.registry import source_digest, source_file
from thresher.options import describe
from thresher.paths import RUN_FORMAT, RunPaths, atomic_file, read_run_json, write_json
from thresher.training.config import TrainConfig, current_values
from thresher.training.resolved import Resolved
from thresher.training.result import BEFORE_AUTO, RunResult
from thresher.training.split import TrainingSplit, split_samples

MOVED = ("data", "selection")
"""Options whose files may have been moved, or are named from another folder: what counts is which
samples they are."""


def finished(config: TrainConfig) -> RunResult | None:
    """Return the result of a finished run when resuming it, None if there is none."""
    paths = RunPaths(Path(config.out))
    if not paths.result.exists():
        return None
    if not config.resume and not _restarted():
        raise AlreadyExistsError(
            f"{config.out} holds a finished run",
            "choose another folder, or set `resume` to return its result",
        )
    _check_same_run(as_begun(config), paths)
    with contextlib.suppress(NotFoundError):  # a result outlives its data
        pack = Pack.open(config.data)
        _check_same_samples(config.out, samples_digest(pack, split_samples(config, pack)))
    return RunResult.load(config.out)


def as_begun(config: TrainConfig) -> TrainConfig:
    """Replace `auto` by what the run that is resumed, or that this one branches from, has."""
    for run in filter(None, (config.out, config.branch_from)):
        content = _begun(run)
        if content is not None:
            begun = content.get("config", {})
            used = {name: begun.get(name, old) for name, old in BEFORE_AUTO.items()}
            return replace(
                config, **{k: v for k, v in used.items() if getattr(config, k) == "auto"}
            )
    return config


def admit(config: TrainConfig) -> None:
    """Refuse a folder that holds something else than this run."""
    root = Path(config.out)
    paths = RunPaths(root)
    if root.exists() and not root.is_dir():
        raise AlreadyExistsError(f"{root} is a file", "choose another folder")
    if paths.config.exists():
        if not config.resume and not _restarted():
            raise AlreadyExistsError(
                f"{root} holds an unfinished run",
                "set `resume` to continue it, or choose another folder",
            )
        _check_same_run(config, paths)
    elif root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir()):
        raise AlreadyExistsError(f"{root} holds other files", "choose an empty folder")


@contextlib.contextmanager
def owned(config: TrainConfig, group: Group) -> Iterator[None]:
    """Hold the folder while the block runs; rank 0 locks it for all."""
    with contextlib.ExitStack() as stack:

        def take() -> None:
            admit(config)
            stack.enter_context(locked(Path(config.out)))
            # Another run may have begun between the two.
            admit(config)

        group.on_first(take)
        yield


def locked(root: Path) -> contextlib.AbstractContextManager[int]:
    """Lock the folder of a run; a second run into it raises BusyError."""
    return exclusive_lock(
        RunPaths(root).lock,
        f"another run is writing to {root}",
        "wait for it, or choose another folder",
    )


def write_config(config: TrainConfig, resolved: Resolved, pack: Pack, split: TrainingSplit) -> None:
    """Write `run.json`: the configuration, what follows from it, and the data.

    Raises InvalidValueError if the run that is resumed, or that this one branches from, was begun
    on other samples or with other labels, or if the number of workers changes its batch.
    """
    path, samples = RunPaths(Path(config.out)).config, samples_digest(pack, split)
    for run in filter(None, (config.out, config.branch_from)):
        _check_same_samples(run, samples)
    _check_same_batch(config, resolved)
    data = {
        "name": pack.name,
        "fingerprint": pack.fingerprint,
        "classes": len(pack.classes),
        "class_order": order_digest(pack.classes),
        "mean": pack.mean.tolist(),
        "std": pack.std.tolist(),
        "train": split.count,
        "validation": len(split.validation),
        "test": len(split.test),
        "test_order": order_digest(pack.ids.take(split.test).to_pylist()),
        "samples": samples,
    }
    content = {"config": config.to_dict(), "resolved": asdict(resolved), "data": data}
    write_json(path, {"format": RUN_FORMAT, **content, **_used_files(config)})


def _used_files(config: TrainConfig) -> dict[str, str]:
    """Return digests of the file of initial weights and of that of a network of one's own."""
    weights = None if config.weights is None else Path(config.weights)
    digests = {
        "weights": file_sha256(weights) if weights is not None and weights.is_file() else None,
        "model_source": source_digest(config.model),
    }
    return {name: digest for name, digest in digests.items() if digest is not None}


def check_same_files(config: TrainConfig, run: str) -> None:
    """Refuse to go on with a run that was begun with other content of these files."""
    begun = _begun(run) or {}
    for name, digest in _used_files(config).items():
        if begun.get(name, digest) != digest:
            file = config.weights if name == "weights" else source_file(config.model)
            raise InvalidValueError(
                f"{file} was changed after the run in {run} was begun",
                "restore it, or choose another folder",
            )


def samples_digest(pack: Pack, split: TrainingSplit) -> str:
    """Return a digest of the samples that a run trains on, and of their labels."""
    digest = hashlib.sha256(pack.fingerprint.encode())
    digest.update(split.train[split.kept].tobytes())
    if split.labels is not None:
        digest.update(split.labels[split.kept].tobytes())
    return digest.hexdigest()[:32]


def write_correct(paths: RunPaths, correct: np.ndarray) -> None:
    """Write `correct.npy`: one bit per test sample, in pack order; nothing without test samples.

    `test_order` in `run.json` identifies these samples and their order.
    """
    if len(correct):
        with atomic_file(paths.correct) as temporary, open(temporary, "wb") as file:
            np.save(file, np.packbits(correct), allow_pickle=False)


def write_result(paths: RunPaths, result: RunResult, keep_checkpoint: bool = False) -> None:
    """Write `result.json`, which marks the run as finished, and remove the checkpoints."""
    write_json(paths.result, result.to_dict())
    if keep_checkpoint:
        return
    for old in paths.checkpoints.glob("*"):
        old.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        paths.checkpoints.rmdir()


def _restarted() -> bool:
    """Return whether torch's elastic agent has restarted this group."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _begun(run: str) -> Mapping[str, Any] | None:
    """Return the `run.json` of a run; None if there is none yet."""
    path = RunPaths(Path(run)).config
    return read_run_json(path, "run's configuration") if path.exists() else None


def _check_same_samples(run: str, samples: str) -> None:
    """Refuse to go on with a run that was begun on other samples than those with this digest."""
    known = (_begun(run) or {}).get("data", {})
    if known.get("samples", samples) != samples:
        raise InvalidValueError(
            f"the run in {run} was begun on other samples or with other labels",
            "undo what was changed in its data or selection, or choose another folder",
        )


def _check_same_batch(config: TrainConfig, resolved: Resolved) -> None:
    """Refuse to resume a weakly scaled run on another number of workers: the batch would change."""
    batch = (_begun(config.out) or {}).get("resolved", {}).get("global_batch")
    if config.scaling == "weak" and batch not in (None, resolved.global_batch):
        raise InvalidValueError(
            f"the run in {config.out} was begun with a global batch of {batch}, but with weak "
            f"scaling on {counted(resolved.workers, 'worker')} it is {resolved.global_batch}",
            "resume it with as many workers as before",
        )


def _same(config: TrainConfig, begun: Mapping[str, Any]) -> bool:
    """Return whether the samples and labels are those that a run was begun on."""
    with contextlib.suppress(ThresherError):
        pack = Pack.open(config.data)
        known = begun.get("data", {}).get("samples")
        return bool(samples_digest(pack, split_samples(config, pack)) == known)
    return False


def _check_same_run(config: TrainConfig, paths: RunPaths) -> None:
    """Refuse to resume a run with other options that change its result."""
    begun = read_run_json(paths.config, "run's configuration")
    saved, given = current_values(begun.get("config", {})), current_values(config.to_dict())
    if begun.get("data", {}).get("test"):
        # With test images nothing is held out by default; version 0.1 wrote 0 for that.
        for values in (saved, given):
            values["validation"] = values.get("validation") or None
    for name in (info.name for info in describe(TrainConfig) if info.changes_result):
        if name in saved and saved[name] != given[name]:
            if name in MOVED and None not in (saved[name], given[name]) and _same(config, begun):
                continue
            # Earlier versions stored the size that a share of the batch means.
            if name == "batch_norm" and saved[name] == for_batch(given[name], config.batch_size):
                continue
            raise InvalidValueError(
                f"the run in {config.out} was begun with `{name}` {saved[name]}, not {given[name]}",
                "resume it with the same options, or choose another folder",
            )
    check_same_files(config, config.out)
