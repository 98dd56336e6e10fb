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
    """Return three lines: how good, how long, and where."""
    measured = [
        f"{split} accuracy {accuracy:.2%} (loss {loss:.4f})"
        for split, accuracy, loss in (
            ("test", result.accuracy, result.loss),
            ("validation", result.validation_accuracy, result.validation_loss),
        )
        if accuracy is not None and loss is not None
    ]
    spent = f"{result.status} after {result.steps:,} steps in {result.seconds:,.1f} s"
    if result.images_per_s is not None:
        spent += f", {result.images_per_s:,.0f} images/s"
    if (target := result.time_to_target) is not None:
        spent += f"; target reached after {target.seconds:,.1f} s and {target.samples:,} samples"
    if result.noise_scale is not None:
        spent += f"; batch size suggested by the noise scale: {result.noise_scale:,.0f}"
    where = f"weights, metrics and settings are in {result.config.out}"
    return "\n".join([", ".join(measured) or "no accuracy was measured", spent, where])
