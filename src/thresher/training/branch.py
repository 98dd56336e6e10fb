"""Begin a run with the state of another one's last step: weights, optimizer, place in the data."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import RunPaths, read_run_json
from thresher.training import checkpoint
from thresher.training.batch_schedule import NOISE
from thresher.training.checkpoint import Checkpoint
from thresher.training.config import TrainConfig

SAME = (
    *("data", "model", "optimizer", "precision", "validation", "split_seed", "selection", "seed"),
    "drop_last",
)
"""Options that a branch shares with its run: the rest of the state depends on them."""


def check_branch(config: TrainConfig) -> None:
    """Refuse a run to branch from that has no checkpoint, or another model or other data."""
    if config.branch_from is None:
        return
    paths = RunPaths(Path(config.branch_from))
    if not any(paths.checkpoints.glob(checkpoint.PATTERN)):
        raise NotFoundError(
            f"there is no checkpoint in {paths.checkpoints}",
            "train the run with `keep_checkpoint`, or check the path",
        )
    begun, given = _begun(config), config.to_dict()
    for name in SAME:
        if name in begun and begun[name] != given[name]:
            what = f"the run in {config.branch_from} has `{name}` {begun[name]}, not {given[name]}"
            # A branch cannot drop the rest of its epochs.
            fix = "branch with the same value" if name != "drop_last" else "train it without"
            raise InvalidValueError(what, fix)
    # The optimizer's state is stored in the order of its groups, and the head is one of its own
    # only with a rate of its own, or with Muon.
    rates = begun.get("head_lr", 1.0), config.head_lr
    apart = [rate != 1 or config.optimizer == "muon" for rate in rates]
    if apart[0] != apart[1]:
        what = f"the run in {config.branch_from} has `head_lr` {rates[0]}"
        raise InvalidValueError(f"{what}, not {rates[1]}", "branch with the same value")


def branch_state(config: TrainConfig, epoch_size: int) -> Checkpoint:
    """Return the state at the end of the run that this one branches from, as one that goes on.

    If the run ended within an epoch (of `epoch_size` samples), the branch goes on with the rest.
    """
    assert config.branch_from is not None
    taken = checkpoint.newest(RunPaths(Path(config.branch_from)).checkpoints)
    assert taken is not None
    progress = {**taken.meta["progress"], "target": None, "ended": None}
    if not continues_growth(config):
        progress["grown"] = []
    begun = _begun(config)
    if taken.meta.get("pruned", begun.get("dynamic") is not None):
        progress |= _place_of_pruned(taken, begun, epoch_size)
        place = progress["epoch"] * epoch_size + progress["offset"]
        progress["ahead"] = progress["skipped"] = place - progress["samples"]
    elif not progress["offset"]:
        # The run may itself be a branch of a pruned one.
        place = progress["samples"] + progress.get("ahead", 0)
        progress["epoch"], offset = divmod(place, epoch_size)
        progress["offset"] = offset
        progress["epoch_loss"] = offset * (progress["train_loss"] or 0.0)
    if not begun.get("budget", "epochs") == config.budget == "epochs":
        progress["skipped"] = 0  # the samples that were left out are no part of the budget
    return replace(taken, meta={**taken.meta, "progress": progress})


def _place_of_pruned(
    taken: Checkpoint, begun: Mapping[str, Any], epoch_size: int
) -> dict[str, float]:
    """Return the epoch of a pruned run, and as large a part of it as that run has behind it."""
    progress = taken.meta["progress"]
    epochs, loss = progress["epoch"], progress["train_loss"] or 0.0
    if progress["offset"]:
        loss = progress["epoch_loss"] / progress["offset"]
        epochs += progress["offset"] / int(taken.tensors["pruner.chosen"].sum())
    elif begun.get("budget", "epochs") == "epochs":
        epochs = min(epochs, begun.get("epochs", epochs))
    offset = int(epochs % 1 * epoch_size)
    return {"epoch": int(epochs), "offset": offset, "epoch_loss": offset * loss}


def continues_growth(config: TrainConfig) -> bool:
    """Return whether the batch grows on from where it was at the end of the other run."""
    begun = _begun(config)
    same = all(begun.get(n) == getattr(config, n) for n in ("batch_size", "max_batch"))
    return same and begun.get("batch_schedule") == config.batch_schedule == NOISE


def _begun(config: TrainConfig) -> Mapping[str, Any]:
    """Return the options of the run that this one branches from."""
    file = RunPaths(Path(config.branch_from or "")).config
    return read_run_json(file, "run's configuration").get("config", {})
