"""Feature extractors in Hugging Face's format: a folder of config.json and model.safetensors.

transformers builds the network. The preprocessing comes from `preprocessor_config.json`; without
one, it is the usual one of the model's family. Nothing is downloaded, and no code from the folder
is run.
"""

import contextlib
import hashlib
import importlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from thresher.data.digest import file_sha256
from thresher.data.images import Resample
from thresher.data.pack import Pack
from thresher.errors import (
    InvalidValueError,
    MissingDependencyError,
    NotFoundError,
    first_line,
    nearest,
)
from thresher.models.embed_config import HUGGING_FACE, EmbedConfig, Pooling
from thresher.models.network import Network, Preprocessing
from thresher.models.own_size import at_own_size, check_size
from thresher.paths import read_json
from thresher.read_errors import unreadable

logger = logging.getLogger(__name__)

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_RESAMPLE: dict[int, Resample] = {2: "bilinear", 3: "bicubic"}


@dataclass(frozen=True)
class Family:
    """How models of one type are built and fed if their folder does not say."""

    model: str
    """Class of transformers that maps images to features."""
    pooling: Pooling
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] = _IMAGENET
    """Mean and standard deviation of each channel."""
    resample: Resample = "bicubic"
    margin: float = 1.0
    """Side that images are scaled to, divided by the side of the centre crop."""
    has_cls: bool = False
    largest: int | None = None
    """Largest side of the crop; the side that a model was trained at may be larger."""


_WIDE = 256 / 224
FAMILIES = {
    "dinov2": Family("Dinov2Model", "cls", margin=_WIDE, has_cls=True, largest=224),
    "dinov2_with_registers": Family(
        "Dinov2WithRegistersModel", "cls", margin=_WIDE, has_cls=True, largest=224
    ),
    "dinov3_vit": Family("DINOv3ViTModel", "cls", resample="bilinear", has_cls=True),
    "dinov3_convnext": Family("DINOv3ConvNextModel", "cls", resample="bilinear", has_cls=True),
    "clip": Family("CLIPVisionModel", "pooled", _CLIP, has_cls=True),
    "clip_vision_model": Family("CLIPVisionModel", "pooled", _CLIP, has_cls=True),
    "siglip": Family("SiglipVisionModel", "pooled", _HALF),
    "siglip_vision_model": Family("SiglipVisionModel", "pooled", _HALF),
    "vit": Family("ViTModel", "cls", _HALF, resample="bilinear", has_cls=True),
    "convnext": Family("ConvNextModel", "pooled", margin=_WIDE),
    "convnextv2": Family("ConvNextV2Model", "pooled", margin=_WIDE),
    "resnet": Family("ResNetModel", "pooled", margin=_WIDE),
}
"""Families by `model_type` of config.json."""


class Extractor(nn.Module):
    """A network of transformers that returns one vector per image.

    Args:
        model: The network.
        pooling: How its output becomes one vector: the class token, the mean of the patch tokens
            or positions, or its own pooled output.
        prefix: Number of tokens before the first patch token.
    """

    def __init__(self, model: nn.Module, pooling: Pooling, prefix: int) -> None:
        super().__init__()
        self.model, self.pooling, self.prefix = model, pooling, prefix

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d) of normalised images (n, channels, height, width)."""
        output: Any = self.model(pixel_values=x)
        last: Tensor = output.last_hidden_state
        if self.pooling == "cls":
            return last[:, 0]
        if self.pooling == "mean":
            return last.mean((2, 3)) if last.ndim == 4 else last[:, self.prefix :].mean(1)
        pooled: Tensor | None = output.pooler_output
        if pooled is None:
            raise InvalidValueError("pooling: this model has no pooled output", "", "pooling")
        return pooled.flatten(1)


def check(model: str) -> None:
    """Raise what `load_extractor` raises if files of `hf:FOLDER_OR_NAME` are missing or unknown."""
    folder = _folder(model.removeprefix(HUGGING_FACE))
    _kind(folder)
    _weights(folder)


def weights_digest(model: str) -> str:
    """Return the checksum of the weights of `hf:FOLDER_OR_NAME`, as features store it.

    Raises:
        NotFoundError: There is no such folder or file.
    """
    return _digest(_weights(_folder(model.removeprefix(HUGGING_FACE))))


def load_extractor(config: EmbedConfig, pack: Pack, positions: np.ndarray) -> Network:
    """Load the network that `config.model`, `hf:FOLDER_OR_NAME`, names.

    A name is looked up in the local cache of Hugging Face. It is for the images at `positions` of
    `pack`.

    Raises:
        NotFoundError: There is no folder, configuration or file of weights.
        InvalidValueError: The type of the model is not supported, or the files or the sizes of the
            images do not fit.
        MissingDependencyError: transformers is not installed.
    """
    assert config.model is not None
    folder = _folder(config.model.removeprefix(HUGGING_FACE))
    kind, weights = _kind(folder), _weights(folder)
    family = FAMILIES[kind]
    pooling = config.pooling or family.pooling
    if pooling == "cls" and not family.has_cls:
        raise InvalidValueError(
            f"pooling cls needs a class token, and {kind} models have none",
            "use mean or pooled",
            "pooling",
        )
    model = _load(folder, family, pooling)
    own: Any = model.config
    images = _own_preprocessing(folder, family, own).replaced(config)
    if len(images.mean) != getattr(own, "num_channels", 3):
        raise InvalidValueError(
            f"{folder} takes images of {own.num_channels} channels, but its mean has "
            f"{len(images.mean)} values",
            "give `mean` and `std`",
        )
    scaled = images.image_size is not None
    if not scaled:
        images = at_own_size(images, pack, positions)
    prefix = int(family.has_cls) + (getattr(own, "num_register_tokens", 0) or 0)
    extractor = Extractor(model, pooling, prefix)
    if not scaled or config.image_size or config.crop:
        check_size(extractor, images, pack, str(folder))
    logger.info("%s: %s with pooling %s, images of %s", folder, kind, pooling, _side(images))
    return Network(
        model=extractor,
        name=config.model,
        preprocessing=images,
        has_probabilities=False,
        weights=str(folder),
        sha256=_digest(weights),
        features_from=config.features_from or "output",
        pooling=pooling,
    )


def _folder(name: str) -> Path:
    folder = Path(name)
    if folder.is_dir():
        return folder
    hint = f"give a folder, or get it with `hf download {name}`"
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        return Path(hub.snapshot_download(name, local_files_only=True))
    except ImportError:
        pass
    except Exception as error:  # an invalid name, or one that is not in the cache
        logger.debug("%s is not in the cache of Hugging Face: %s", name, error)
    raise NotFoundError(f'there is no folder and no cached model "{name}"', hint)


def _kind(folder: Path) -> str:
    if not (folder / "config.json").is_file():
        raise NotFoundError(
            f"{folder} has no config.json", "give the folder that `save_pretrained` wrote"
        )
    content = read_json(folder / "config.json")
    kind = content.get("model_type") if isinstance(content, dict) else None
    if kind not in FAMILIES:
        raise InvalidValueError(
            f'config.json of {folder} has the model_type "{kind}", which is not supported',
            nearest(str(kind), FAMILIES),
        )
    return str(kind)


def _weights(folder: Path) -> list[Path]:
    """Return the files of weights: one, or the parts that an index lists."""
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        content = read_json(index)
        table = content.get("weight_map") if isinstance(content, dict) else None
        names = set(map(str, table.values())) if isinstance(table, dict) else names
    for name in sorted(names):
        if not (folder / name).is_file():
            raise NotFoundError(
                f"{folder} has no {name}",
                "save the model with `save_pretrained`; other formats may run code when loaded",
            )
    return [folder / name for name in sorted(names)]


def _digest(files: list[Path]) -> str:
    digests = [file_sha256(file) for file in files]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def _load(folder: Path, family: Family, pooling: Pooling) -> nn.Module:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise MissingDependencyError(
            "models of Hugging Face need transformers, which is not installed",
            "pip install transformers",
        ) from None
    if not hasattr(transformers, family.model):
        raise MissingDependencyError(
            f"transformers {transformers.__version__} has no {family.model}", "install a newer one"
        )
    options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        with _quiet(transformers):
            model, info = getattr(transformers, family.model).from_pretrained(folder, **options)
    except Exception as error:  # a dozen types, for damaged files and for shapes that differ
        wrong = InvalidValueError(f"{folder} cannot be loaded ({first_line(error)})")
        refused = (unreadable(file, error) for file in _weights(folder))
        raise next(filter(None, refused), wrong) from error
    # transformers leaves tensors that the file lacks at random values. A pooling layer may be
    # missing if it is not used.
    unused = "pooler." if pooling != "pooled" else "\0"
    missing = [key for key in sorted(info["missing_keys"]) if not key.startswith(unused)]
    if missing:
        raise InvalidValueError(
            f'the weights in {folder} have no tensor "{missing[0]}", which {family.model} needs',
            "use `pooling` cls or mean" if missing[0].startswith("pooler.") else "",
        )
    result: nn.Module = model.float()
    return result


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hide progress bars and reports of transformers, which go to standard output or error."""
    log = transformers.utils.logging
    level, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shown:
            log.enable_progress_bar()


def _own_preprocessing(folder: Path, family: Family, own: Any) -> Preprocessing:
    """Return the preprocessing that a folder describes, or that of the family."""
    for name in ("preprocessor_config.json", "processor_config.json"):
        file = folder / name
        if file.is_file():
            content = read_json(file)
            values = content.get("image_processor", content) if isinstance(content, dict) else None
            try:
                return _read_preprocessing(values, family, own)
            except (TypeError, ValueError, AttributeError) as error:
                raise InvalidValueError(f"{file} is not understood ({error})") from None
    logger.info("%s has no preprocessor_config.json: using the defaults of its family", folder)
    return _read_preprocessing({}, family, own)


def _read_preprocessing(values: Any, family: Family, own: Any) -> Preprocessing:
    mean, std = family.normalisation
    if not values.get("do_normalize", True):
        mean, std = (0.0,) * len(mean), (1.0,) * len(std)
    else:
        mean, std = values.get("image_mean", mean), values.get("image_std", std)
    # Mean and std belong to pixels of 0 … `white`, ours to pixels of 0 … 1.
    white = 255.0
    if values.get("do_rescale", True):
        white *= float(values.get("rescale_factor") or 1 / 255)
    side = min(getattr(own, "image_size", 224) or 224, family.largest or 1 << 30)
    size: int | None = round(side * family.margin)
    crop = side if family.margin > 1 else None
    if not values.get("do_resize", True):
        cropped = values.get("do_center_crop", values.get("crop_size") is not None)
        size, crop = None, _side_of(values.get("crop_size") or side) if cropped else None
    elif values.get("size") is not None:
        size, crop = _side_of(values["size"]), None
        if values.get("crop_pct") and size < 384:  # as ConvNextImageProcessor: scale, then crop
            size, crop = int(size / values["crop_pct"]), size
        elif values.get("do_center_crop", values.get("crop_size") is not None):
            crop = _side_of(values.get("crop_size") or size)
    return Preprocessing(
        mean=tuple(float(value) / white for value in mean),
        std=tuple(float(value) / white for value in std),
        image_size=size,
        crop=crop if crop != size else None,
        resample=_resample(values.get("resample"), family),
    )


def _resample(number: int | None, family: Family) -> Resample:
    if number is not None and number not in _RESAMPLE:
        logger.warning(
            "images should be scaled by method %s of Pillow, which is not supported: using %s",
            *(number, family.resample),
        )
    return family.resample if number is None else _RESAMPLE.get(number, family.resample)


def _side_of(size: Any) -> int:
    """Return the side of a square, from 224, {"shortest_edge": 224} or {"height": …}."""
    if isinstance(size, dict):
        sides = {size[key] for key in ("shortest_edge", "height", "width") if size.get(key)}
        if len(sides) != 1:
            raise ValueError(f"size {json.dumps(size)} is not square")
        size = sides.pop()
    return int(size)


def _side(images: Preprocessing) -> str:
    crop = f", cropped to {images.crop}" if images.crop else ""
    side = "their own size" if images.image_size is None else f"{images.image_size} pixels"
    return f"{side}{crop}"
