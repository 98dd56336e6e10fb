"""A trained network with the preprocessing that belongs to it."""

import importlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from thresher.data.crops import ResizedCrop
from thresher.data.digest import file_sha256, order_digest
from thresher.data.images import Resample
from thresher.data.pack import Pack
from thresher.errors import InvalidValueError, NotFoundError
from thresher.models import registry, weights
from thresher.models.embed_config import EmbedConfig
from thresher.paths import RunPaths, as_path, read_run_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How images are prepared for a network."""

    mean: tuple[float, ...]
    """Mean of each channel, subtracted from images in [0, 1]."""
    std: tuple[float, ...]
    crop: int | None = None
    """Side of the centre crop; None for the whole image."""
    image_size: int | None = None
    """Side that images are scaled to."""
    resample: Resample = "bilinear"
    """How they are scaled."""

    @classmethod
    def of_run(cls, run: str | Path, pack: Pack) -> "Preprocessing":
        """Return the preprocessing that a run was trained with."""
        config, data, resolved = _read_run(run)
        size, crop = config.get("image_size"), config.get("crop")
        if resolved.get("augment") == "imagenet":
            crop = resolved["image_size"]
            size = ResizedCrop(crop).short_side
        elif pack.image_shape is not None and (
            pack.image_shape[:2] == (size, size) or resolved.get("image_size") != size
        ):
            size = None  # as they are; runs of raw images once took an image_size without effect
        return cls(
            mean=tuple(data.get("mean") or pack.mean.tolist()),
            std=tuple(data.get("std") or pack.std.tolist()),
            crop=crop or None,
            image_size=size or None,
        )

    @classmethod
    def of_pack(cls, pack: Pack) -> "Preprocessing":
        """Return the normalisation by the statistics of a pack, at the size of its images."""
        return cls(mean=tuple(pack.mean.tolist()), std=tuple(pack.std.tolist()))

    @classmethod
    def of_model(cls, name: str, pack: Pack) -> "Preprocessing":
        """Return what belongs to the network `name`: that of its library, or `of_pack`.

        Networks of timm and torchvision are given RGB images as their libraries prepare them for
        the published weights.
        """
        source, _, inner = name.partition(":")
        channels = pack.image_shape[2] if pack.image_shape else 3
        if source not in _PUBLISHED or channels != 3:
            return cls.of_pack(pack)
        images = _PUBLISHED[source](inner)
        if images is None:
            logger.warning(
                "%s has no published weights of %s: images are normalised by the statistics of %s",
                *(source, inner, pack.name),
            )
            return cls.of_pack(pack)
        logger.info(
            "images are prepared as %s does it: scaled to %s, cropped to %s, mean %s, std %s",
            *(source, images.image_size, images.crop, images.mean, images.std),
        )
        return images

    def sides(self, pack: Pack) -> tuple[int, int] | None:
        """Return height and width of the images of `pack` as prepared; None if they differ."""
        side = self.crop or self.image_size
        if side is None and pack.image_shape is not None:
            return pack.image_shape[0], pack.image_shape[1]
        return None if side is None else (side, side)

    def replaced(self, config: EmbedConfig) -> "Preprocessing":
        """Return this preprocessing with the values that are given; a new size drops the own crop.

        Raises:
            InvalidValueError: There is not one value per channel, or a std is not positive.
        """
        mean, std = config.mean, config.std
        for name, value in (("mean", mean), ("std", std)):
            if value and len(value) != len(self.mean):
                what = f"{name} must have {len(self.mean)} values, one per channel, got {value}"
                raise InvalidValueError(what, "", name)
        if std and min(std) <= 0:
            raise InvalidValueError(f"std must be positive, got {std}", "", "std")
        return replace(
            self,
            crop=config.crop or (None if config.image_size else self.crop),
            image_size=config.image_size or self.image_size,
            mean=mean or self.mean,
            std=std or self.std,
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network in evaluation, and where its weights come from."""

    model: nn.Module
    name: str
    """As in the model registry."""
    preprocessing: Preprocessing
    has_probabilities: bool = True
    """Whether its head was trained on the pack's classes."""
    has_trained_head: bool = True
    """Whether its head, if it has one, comes from the weights; otherwise it is random."""
    run: str | None = None
    """The training run that it comes from."""
    weights: str | None = None
    """The file of weights, if it does not come from a run."""
    sha256: str | None = None
    """Checksum of the file of weights."""
    model_source: str | None = None
    """Checksum of the file of a network that is given as package.module:function."""
    features_from: str | None = None
    """Layer whose output are the features, or "output"; None to find them."""
    pooling: str | None = None
    """How a network of transformers makes one vector per image."""

    @classmethod
    def from_run(cls, run: str | Path, pack: Pack) -> "Network":
        """Load the network of a finished training run.

        Raises:
            NotFoundError: The folder is not a run, or the run has not finished.
        """
        config, data, _ = _read_run(run)
        if data.get("fingerprint") not in (None, pack.fingerprint) and "mean" not in data:
            logger.warning(
                "%s was trained on other data; normalising by the statistics of %s", run, pack.name
            )
        images, file = Preprocessing.of_run(run, pack), weights_of_run(run)
        used = read_run_json(RunPaths(as_path(run, "run")).config, "run").get("model_source")
        if used not in (None, source_of_run(run)):
            logger.warning(
                "the file of %s was changed after %s had been trained with it: the features are "
                "those of the changed network with the weights of that run",
                *(config["model"], run),
            )
        network = cls._load(config["model"], file, pack, preprocessing=images, run=str(run))
        if not network.has_probabilities or _same_classes(data, pack):
            return network
        logger.warning(
            "%s was trained on other classes than those of %s: there are no probabilities",
            *(run, pack.name),
        )
        return replace(network, has_probabilities=False)

    @classmethod
    def from_weights(
        cls,
        name: str,
        file: str | Path,
        pack: Pack,
        preprocessing: Preprocessing | None = None,
    ) -> "Network":
        """Build the model `name` and load weights; images are prepared as `of_model` says."""
        images = preprocessing or Preprocessing.of_model(name, pack)
        return cls._load(name, as_path(file, "file"), pack, preprocessing=images, weights=str(file))

    @classmethod
    def _load(cls, name: str, file: Path, pack: Pack, **facts: Any) -> "Network":
        channels = pack.image_shape[2] if pack.image_shape else 3
        sides = facts["preprocessing"].sides(pack)
        model = registry.build(name, len(pack.classes), channels, sides=sides)
        skipped = weights.load_into(model, file, name)
        return cls(
            model=model,
            name=name,
            has_probabilities=not skipped,
            has_trained_head=not skipped,
            sha256=file_sha256(file),
            model_source=registry.source_digest(name),
            **facts,
        )


def _same_classes(data: Mapping[str, Any], pack: Pack) -> bool:
    """Return whether a run on `data` had the classes of `pack`, or may have: older ones say less.

    With the same samples and labels, classes may have been renamed.
    """
    names = data.get("class_order")
    return data.get("fingerprint") == pack.fingerprint or names in (
        None,
        order_digest(pack.classes),
    )


def weights_of_run(run: str | Path) -> Path:
    """Return the file of weights of a finished run, or raise NotFoundError."""
    file = RunPaths(as_path(run, "run")).model
    if not file.exists():
        raise NotFoundError(
            f"run {run} has no model yet", "let it finish: `thresher train … --resume`"
        )
    return file


def source_of_run(run: str | Path) -> str | None:
    """Return the checksum that the file of a run's network has now; None without such a file."""
    return registry.source_digest(_read_run(run)[0]["model"])


_Table = Mapping[str, Any]


def _read_run(run: str | Path) -> tuple[_Table, _Table, _Table]:
    """Return the configuration of a run, its data, and what followed from them."""
    paths = RunPaths(as_path(run, "run"))
    if not paths.root.is_dir():
        raise NotFoundError(f"there is no run at {run}", "check the path")
    saved = read_run_json(paths.config, "run")
    tables = saved.get("config", saved), saved.get("data", {}), saved.get("resolved", {})
    if not isinstance(tables[0].get("model"), str):
        raise InvalidValueError(f"{paths.config} is damaged: it does not name a model")
    return tables


def _timm(name: str) -> Preprocessing | None:
    timm = registry.import_library("timm")
    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is None:
        return None
    data = importlib.import_module("timm.data")
    values = data.resolve_data_config(pretrained_cfg=config.to_dict())
    side = int(values["input_size"][-1])
    return Preprocessing(
        mean=tuple(map(float, values["mean"])),
        std=tuple(map(float, values["std"])),
        crop=side,
        image_size=math.floor(side / float(values["crop_pct"])),
        resample=_resample(values["interpolation"]),
    )


def _torchvision(name: str) -> Preprocessing | None:
    registry.import_library("torchvision")
    models = importlib.import_module("torchvision.models")
    if name not in models.list_models(module=models) or not list(models.get_model_weights(name)):
        return None
    images: Any = models.get_model_weights(name).DEFAULT.transforms()
    return Preprocessing(
        mean=tuple(map(float, images.mean)),
        std=tuple(map(float, images.std)),
        crop=int(images.crop_size[0]),
        image_size=int(images.resize_size[0]),
        resample=_resample(images.interpolation.value),
    )


def _resample(name: str) -> Resample:
    if name in get_args(Resample):
        return name  # type: ignore[return-value]
    logger.warning("images should be scaled by %s, which is not supported: using bilinear", name)
    return "bilinear"


_PUBLISHED = {"timm": _timm, "torchvision": _torchvision}
