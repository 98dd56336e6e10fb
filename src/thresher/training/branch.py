"""Begin a run with the state of another one's last step: weights, optimizer, place in the data."""

from dataclasses import replace
from pathlib import Path

from thresher.errors import InvalidValueError, NotFoundError
from thresher.paths import RunPaths, read_run_json
from thresher.training import checkpoint
from thresher.training.checkpoint import Checkpoint
from thresher.training.config import TrainConfig

SAME = ("data", "model", "optimizer", "precision", "validation", "split_seed", "selection", "seed")
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
    begun = read_run_json(paths.config, "run's configuration").get("config", {})
    given = config.to_dict()
    for name in SAME:
        if name in begun and begun[name] != given[name]:
            what = f"the run in {config.branch_from} has `{name}` {begun[name]}, not {given[name]}"
            raise InvalidValueError(what, "branch with the same value")
    # The optimizer's state is stored in the order of its groups, and the head is one of its own
    # only with a rate of its own, or with Muon.
    rates = begun.get("head_lr", 1.0), config.head_lr
    apart = [rate != 1 or config.optimizer == "muon" for rate in rates]
    if apart[0] != apart[1]:
        what = f"the run in {config.branch_from} has `head_lr` {rates[0]}"
        raise InvalidValueError(f"{what}, not {rates[1]}", "branch with the same value")


def branch_state(run: str, epoch_size: int) -> Checkpoint:
    """Return the state at the end of a run, without its target.

    If the run ended within an epoch (of `epoch_size` samples), the branch goes on with the rest.
    """
    paths = RunPaths(Path(run))
    taken = checkpoint.newest(paths.checkpoints)
    assert taken is not None
    progress = {**taken.meta["progress"], "target": None, "grown": []}
    begun = read_run_json(paths.config, "run's configuration").get("config", {})
    if not progress["offset"] and begun.get("dynamic") is None:  # pruned epochs are shorter
        progress["epoch"], offset = divmod(progress["samples"], epoch_size)
        progress["offset"] = offset
        progress["epoch_loss"] = offset * (progress["train_loss"] or 0.0)
    return replace(taken, meta={**taken.meta, "progress": progress})
