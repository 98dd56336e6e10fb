"""`thresher train`: one run."""

from typing import Any

from thresher.cli.commands import Outcome
from thresher.errors import ThresherError, nearest
from thresher.training.config import TrainConfig

STOPPED = 143
"""The exit code of a process that ended on SIGTERM, as shells and schedulers know it."""


def train(config: TrainConfig) -> Outcome | None:
    """Train one network on a pack, at any batch size on any number of workers.

    The batch is the global one: 1, 2 or 4 workers take the same path. Everything derived (rates,
    steps, parts) is shown before the run and saved with it. Killed runs go on with --resume.
    """
    from thresher.distributed.group import place

    where = place()
    try:
        result = run(config)
    except ThresherError:
        if where.rank:
            # Rank 0 says the same sentence.
            raise SystemExit(2) from None
        raise
    if where.rank:
        return None
    return Outcome(result, summary(result), then=_leave if result["status"] == "stopped" else None)


def run(config: TrainConfig) -> dict[str, Any]:
    """Train here, or in a group of workers that know the pruners."""
    from thresher.distributed.group import place
    from thresher.training.config import check

    check(config)
    make_pruner(config)
    if config.workers > 1 and place().world == 1:
        from thresher.training.launched import train_in_group

        return train_in_group(config, worker="thresher.cli.worker")
    from thresher.training.loop import train as train_here

    return train_here(config, make_pruner(config))


def make_pruner(config: TrainConfig) -> Any:
    """What `--dynamic` names; None for `none`."""
    if config.dynamic == "none":
        return None
    import importlib

    dynamic = importlib.import_module("thresher.select.dynamic")
    known = {"infobatch": "InfoBatch", "dynamic-random": "DynamicRandom"}
    if config.dynamic not in known:
        raise ThresherError(
            f'there is no dynamic pruner "{config.dynamic}"', nearest(config.dynamic, known)
        )
    return getattr(dynamic, known[config.dynamic])()


def summary(result: dict[str, Any]) -> str:
    """A few lines for people."""
    lines = [f"{result['status']} after {result['steps']:,} steps, {result['seconds']:,.1f} s"]
    for key, label in (
        ("accuracy", "test accuracy"),
        ("loss", "test loss"),
        ("validation_accuracy", "validation accuracy"),
        ("validation_loss", "validation loss"),
        ("images_per_s", "images per second"),
        ("noise_scale", "batch that the noise scale suggests"),
    ):
        value = result[key]
        if value is not None:
            lines.append(
                f"  {label.ljust(36)} {value:,.4f}"
                if value < 100
                else f"  {label.ljust(36)} {value:,.0f}"
            )
    if result["time_to_target"]:
        target = result["time_to_target"]
        lines.append(
            f"  {'target reached after'.ljust(36)} {target['seconds']:,.1f} s, "
            f"{target['samples']:,} samples, {target['steps']:,} steps"
        )
    lines.append(f"  {'run'.ljust(36)} {result['config']['out']}")
    return "\n".join(lines)


def _leave() -> None:
    raise SystemExit(STOPPED)
