"""`thresher train`: one run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.cli.commands import Outcome, values_of
from thresher.cli.packs import ensure_pack
from thresher.errors import ThresherError, counted
from thresher.options import option
from thresher.startup import finish_triton, skip_pandas
from thresher.training.config import TrainConfig, file_options
from thresher.training.gpu_streams import connect_early
from thresher.training.presets import preset
from thresher.training.result import RunResult

STOPPED = 143
"""The exit code of a process that ended on SIGTERM, as shells and schedulers know it."""
DIVERGED = 3
"""The exit code of a run that diverged, with `fail_on_diverged`."""


@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig):
    config: Path | None = option(None, changes_result=False)
    """File of options in TOML (batch_size = 64) or JSON, such as that in the folder of a run; flags
    on the command line win."""
    fail_on_diverged: bool = option(False, changes_result=False)
    """Exit with code 3 if the loss becomes infinite or not a number."""

    @classmethod
    def flag_defaults(cls, flags: Mapping[str, str]) -> dict[str, Any]:
        """Return the options of the file and those that belong to the model, as defaults."""
        values = file_options(flags["--config"]) if "--config" in flags else {}
        return {**preset(flags.get("--model", values.get("model"))), **values}


def train(given: Train) -> Outcome | None:
    """Train one network on a pack.

    The batch size is global: 1, 2 or 4 workers train to the same weights, unless the network itself
    draws random numbers, as dropout does, or has batch norm and `batch_norm` is local. Derived
    settings (rates, steps, batches per worker) are shown before the run and saved with it. Use
    --resume to continue a killed run.
    """
    from thresher.distributed.group import placement

    config = TrainConfig(**values_of(given, TrainConfig))
    rank, world = placement().rank, placement().world
    try:
        ensure_pack(config.data)
        connect_early(config.device, max(world, config.workers))
        from thresher.data.pack import Pack
        from thresher.training import train as training

        finish_triton()
        skip_pandas()
        result = training.train(config)
        tested = Pack.open(config.data).test_split or "test"
    except ThresherError:
        if rank:
            raise SystemExit(2) from None  # rank 0 reports the same error
        raise
    if rank:
        return None
    code = STOPPED if result.status == "stopped" else 0
    if result.status == "diverged" and given.fail_on_diverged:
        code = DIVERGED
    return Outcome(result.to_dict(), _summary(result, tested), code=code)


def _summary(result: RunResult, tested: str) -> str:
    """Return three lines: how good, how long, and where; `tested` is the split of `accuracy`."""
    held_out = "held-out" if tested == "validation" else "validation"
    measured = [
        f"{split} accuracy {100 * accuracy:.2f} % (loss {loss:.4f})"
        for split, accuracy, loss in (
            (tested, result.accuracy, result.loss),
            (held_out, result.validation_accuracy, result.validation_loss),
        )
        if accuracy is not None and loss is not None
    ]
    spent = f"{result.status} after {counted(result.steps, 'step')} in {result.seconds:,.1f} s"
    if result.images_per_s is not None:
        spent += f", {result.images_per_s:,.0f} images/s"
    if (target := result.time_to_target) is not None:
        spent += f"; target reached after {target.seconds:,.1f} s and {target.samples:,} samples"
    if result.noise_scale is not None:
        spent += f"; batch size suggested by the noise scale: {result.noise_scale:,.0f}"
    if len(phases := result.resolved.batch_phases) > 1:
        spent += f"; the batch grew from {phases[0][1]:,} to {phases[-1][1]:,}"
    if (sharp := result.sharpness) is not None and sharp.top_eigenvalue is not None:
        spent += f"; top Hessian eigenvalue {sharp.top_eigenvalue:.3g}"
    where = f"weights, metrics and settings are in {result.config.out}"
    if result.status == "stopped":
        where = f"its checkpoint is in {result.config.out}: continue it with --resume"
    return "\n".join([", ".join(measured) or "no accuracy was measured", spent, where])
