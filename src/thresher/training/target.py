"""The target that ends a run early, and when it was reached."""

from dataclasses import dataclass

from thresher.options import option


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """Evaluations, and the target that ends a run."""

    evaluate_every: int = option(1, ge=0, changes_result=False)
    """Epochs between evaluations; 0: only at the end."""
    target_loss: float | None = None
    """Stop when the loss on validation (without one: on test) is this low."""
    target_accuracy: float | None = option(None, gt=0, le=1)
    """Stop when the accuracy there, from 0 to 1, is this high."""


@dataclass(frozen=True)
class TargetReached:
    """When a run reached `target_accuracy` or `target_loss`."""

    seconds: float
    """Training time, evaluations not counted."""
    samples: int
    steps: int
