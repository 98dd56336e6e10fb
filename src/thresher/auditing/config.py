"""Options of an audit. Importing them does not load torch, so that `--help` is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.models.embed_config import EFFICIENTNET, EmbedConfig
from thresher.options import option, validate

OWN_NETWORK = {"run": False, "features": False, "model": False}


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """The network that an audit looks at the images with, and how it reports.

    Example:
        >>> from thresher import AuditConfig
        >>> AuditConfig(network="resnet20", epochs=5).examples
        24
    """

    run: Path | None = None
    """Training run whose network to use; by default a small one is trained on the images."""
    features: Path | None = None
    """Features of the training images to use instead of a network."""
    model: str | None = None
    """Pretrained network to use instead: efficientnet-lite0, or hf:FOLDER in Hugging Face's
    format."""
    network: str = option("auto", only_with=OWN_NETWORK)
    """Network to train: a model by name; auto takes tiny for images of up to 16 pixels, else
    resnet20."""
    epochs: int | None = option(None, ge=1, only_with=OWN_NETWORK)
    """Epochs to train it for; by default few, so that it does not memorise wrong labels."""
    image_size: int = option(32, ge=8, only_with=OWN_NETWORK)
    """Side that images of different sizes are scaled to for that network."""
    leakage: float = option(0.5, ge=0, lt=1)
    """How near an aligned training image must be to a test image to count as its copy, as a share
    of the usual distance; larger values list more borderline pairs."""
    examples: int = option(24, ge=1, changes_result=False)
    """Images to show of each finding."""
    seed: int = option(0, ge=0)
    """Seed of the network and of the folds."""
    device: Literal["auto", "cpu", "cuda", "mps"] = option("auto", changes_result=False)
    """Where to compute; auto uses a GPU if there is one."""

    def check(self) -> None:
        """Raise unless at most one network is given."""
        validate(self)
        given = [name for name in ("run", "features", "model") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidValueError(
                f"{given[0]} and `{given[1]}` exclude each other", "give one of them", given[0]
            )
        if self.model is not None and not EmbedConfig(model=self.model).has_own_weights:
            raise InvalidValueError(
                f"model must be {EFFICIENTNET} or hf:FOLDER, got {self.model}",
                "use `network` to name one that is trained",
                "model",
            )
