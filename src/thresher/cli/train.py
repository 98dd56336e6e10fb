"""`thresher train`: one run."""

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

STOPPED = 143
"""The exit code of a process that ended on SIGTERM, as shells and schedulers know it."""


def train(config: TrainConfig) -> Outcome | None:
    """Train one network on a pack.

    The batch size is global: 1, 2 or 4 workers train to the same weights. Derived settings (rates,
    steps, batches per worker) are shown before the run and saved with it. Use --resume to continue
    a killed run.
    """
    from thresher.distributed.group import placement
    from thresher.training import train as training

    rank = placement().rank
    try:
        ensure_pack(config.data)
        result = training.train(config)
    except ThresherError:
        if rank:
            raise SystemExit(2) from None  # rank 0 reports the same error
        raise
    if rank:
        return None
    code = STOPPED if result.status == "stopped" else 0
    return Outcome(result.to_dict(), _summary(result), code=code)


def _summary(result: RunResult) -> str:
    rows: dict[str, str] = {}
    for label, value in (
        ("test accuracy", result.accuracy),
        ("test loss", result.loss),
        ("validation accuracy", result.validation_accuracy),
        ("validation loss", result.validation_loss),
        ("images per second", result.images_per_s),
        ("suggested batch size (noise scale)", result.noise_scale),
    ):
        if value is not None:
            rows[label] = f"{value:,.4f}" if value < 100 else f"{value:,.0f}"
    if (target := result.time_to_target) is not None:
        after = f"{target.seconds:,.1f} s, {target.samples:,} samples, {target.steps:,} steps"
        rows["target reached after"] = after
    rows["run"] = result.config.out
    head = f"{result.status} after {result.steps:,} steps, {result.seconds:,.1f} s"
    return "\n".join([head, *(f"  {label.ljust(36)} {text}" for label, text in rows.items())])
