"""Options of embedding. Importing them does not load torch, so that `--help` is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.options import option, validate


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options of embedding, whatever the network."""

    split: str = "train"
    """Samples to embed: a split of the pack (train, test, validation), or all."""
    dtype: Literal["float16", "float32"] = "float16"
    """Precision that the features are stored in."""
    batch_size: int = option(512, ge=1)
    """Samples at once on each worker."""
    device: Literal["auto", "cpu", "cuda"] = option("auto", changes_result=False)
    """Where to compute; auto uses a GPU if there is one."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(EmbedOptions):
    """A network, by run or by file of weights, and the options of embedding."""

    run: Path | None = None
    """Training run whose network to use."""
    model: str | None = None
    """Model by name, with `weights`, instead of a run."""
    weights: Path | None = None
    """Pretrained weights of `model`: a safetensors file or a state dict."""
    crop: int | None = option(None, ge=1)
    """With `model`: side of the centre crop; by default the whole image."""
    image_size: int | None = option(None, ge=1)
    """With `model`: side that images are scaled to."""
    mean: tuple[float, ...] = ()
    """With `model`: mean of each channel that it was trained with; by default that of the pack."""
    std: tuple[float, ...] = ()
    """With `model`: standard deviation of each channel; by default that of the pack."""
    features_from: str | None = None
    """Layer whose output are the features, or output for that of the network; by default the input
    of its head, or the output of a network without one."""

    def check(self) -> None:
        """Raise unless exactly one network is given."""
        validate(self)
        if self.run is not None and (self.model is not None or self.weights is not None):
            raise InvalidValueError(
                "run excludes `model` and `weights`", "give the run, or the file", "run"
            )
        if self.run is not None and (self.mean or self.std):
            raise InvalidValueError("mean and std come from the run", "leave them out", "mean")
        if self.run is None and (self.model is None or self.weights is None):
            raise InvalidValueError(
                "there is no network to embed with", "give `run`, or `model` and `weights`"
            )
