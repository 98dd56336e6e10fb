"""Options of embedding. Importing them does not load torch, so that `--help` is fast."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.options import option, validate

HUGGING_FACE = "hf:"
"""Begins the name of a model in Hugging Face's format."""
EFFICIENTNET = "efficientnet-lite0"
"""A network pretrained on ImageNet that comes with its weights."""

Pooling = Literal["cls", "mean", "pooled"]
"""How a network of transformers makes one vector: class token, mean of the patches, its own."""


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Options of embedding, whatever the network."""

    split: str = "train"
    """Samples to embed: a split of the pack (train, test, validation), or all."""
    dtype: Literal["float16", "float32"] = "float16"
    """Precision that the features are stored in."""
    batch_size: int = option(512, ge=1)
    """Samples at once on each worker."""
    device: Literal["auto", "cpu", "cuda", "mps"] = option("auto", changes_result=False)
    """Where to compute; auto uses a GPU if there is one."""


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(EmbedOptions):
    """A network, by run or by file of weights, and the options of embedding."""

    run: Path | None = None
    """Training run whose network to use."""
    model: str | None = None
    """Model by name, with `weights`, instead of a run; efficientnet-lite0, which comes with its
    weights; or hf:FOLDER, a model in Hugging Face's format."""
    weights: Path | None = None
    """Pretrained weights of `model`: a safetensors file, a state dict or Lightning's .ckpt."""
    crop: int | None = option(None, ge=1)
    """With `model`: side of the centre crop; by default the whole image, or what comes with
    the model (efficientnet-lite0, hf:, timm:, torchvision:)."""
    image_size: int | None = option(None, ge=1)
    """With `model`: side that images are scaled to; by default none, or likewise."""
    mean: tuple[float, ...] = ()
    """With `model`: mean of each channel that it was trained with; by default that of the pack, or
    likewise."""
    std: tuple[float, ...] = ()
    """With `model`: standard deviation of each channel; likewise."""
    features_from: str | None = None
    """Layer whose output are the features, or output for that of the network; by default the input
    of its head, or the output of a network without one."""
    pooling: Pooling | None = None
    """With hf: models: one vector per image from the class token, from the mean of the patches, or
    the model's own pooled output; by default what its family uses."""

    @property
    def is_hugging_face(self) -> bool:
        """Whether the model is a folder in Hugging Face's format."""
        return self.model is not None and self.model.startswith(HUGGING_FACE)

    @property
    def has_own_weights(self) -> bool:
        """Whether the weights come with the model."""
        return self.is_hugging_face or self.model == EFFICIENTNET

    def check(self) -> None:
        """Raise unless exactly one network is given."""
        validate(self)
        if self.run is not None and (self.model is not None or self.weights is not None):
            raise InvalidValueError(
                "run excludes `model` and `weights`", "give the run, or the file", "run"
            )
        if self.run is not None and (self.mean or self.std):
            raise InvalidValueError("mean and std come from the run", "leave them out", "mean")
        if self.run is not None and (self.crop is not None or self.image_size is not None):
            name = "crop" if self.crop is not None else "image_size"
            raise InvalidValueError(f"{name} comes from the run", "leave it out", name)
        if self.has_own_weights and self.weights is not None:
            where = "in the folder of" if self.is_hugging_face else "installed with"
            raise InvalidValueError(
                f"weights are those {where} {self.model}", "leave them out", "weights"
            )
        if self.pooling is not None and not self.is_hugging_face:
            raise InvalidValueError("pooling is for hf: models", "use `features_from`", "pooling")
        if self.pooling is not None and self.features_from not in (None, "output"):
            raise InvalidValueError(
                "pooling and `features_from` exclude each other", "give one of them", "pooling"
            )
        if self.has_own_weights:
            return
        if self.run is None and (self.model is None or self.weights is None):
            raise InvalidValueError(
                "there is no network to embed with", "give `run`, or `model` and `weights`"
            )
