"""Extractors in Hugging Face's format: the features of transformers, from a folder on disk."""

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from thresher.data.pack import Pack
from thresher.errors import ThresherError
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig
from thresher.models.features import Features
from thresher.models.hugging_face import FAMILIES, _read_preprocessing
from thresher.models.registry import check

pytestmark = pytest.mark.slow  # imports transformers


@pytest.fixture(autouse=True)
def _transformers() -> None:
    """Skip where it is missing; not imported by workers that only collect these tests."""
    pytest.importorskip("transformers")


Run = Callable[..., subprocess.CompletedProcess[str]]
Once = Callable[[str, Callable[[Path], None]], Path]

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_MLP = {"intermediate_size": 64}
_VISION = {**_SMALL, **_MLP, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
_TEXT = {**_SMALL, **_MLP, "vocab_size": 50, "max_position_embeddings": 8}
_BOTH = {"vision_config": _VISION, "text_config": _TEXT, "projection_dim": 16}


def make(folder: Path, kind: str, **options: Any) -> Any:
    """Save a small model with random weights; return it in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    names: dict[str, tuple[str, dict[str, Any]]] = {
        "dinov2": ("Dinov2", {**_SMALL, "image_size": 28, "patch_size": 14}),
        "dinov2_with_registers": (
            "Dinov2WithRegisters",
            {**_SMALL, "image_size": 28, "patch_size": 14, "num_register_tokens": 3},
        ),
        "dinov3_vit": ("DINOv3ViT", {**_VISION, "num_register_tokens": 2}),
        "dinov3_convnext": ("DINOv3ConvNext", {"hidden_sizes": [8, 8, 16, 16], "depths": [1] * 4}),
        "clip": ("CLIP", _BOTH),
        "siglip": ("Siglip", {"vision_config": _VISION, "text_config": _TEXT}),
        "vit": ("ViT", _VISION),
        "convnext": ("ConvNext", {**_STAGES, "image_size": 32}),
        "resnet": ("ResNet", {"embedding_size": 8, **_STAGES, "depths": [1, 1]}),
    }
    prefix, settings = names[kind]
    model = getattr(transformers, f"{prefix}Model")(
        getattr(transformers, f"{prefix}Config")(**{**settings, **options})
    )
    model.save_pretrained(folder)
    return model.eval()


def images(pack: Pack, size: int, crop: int, resample: int = 3) -> torch.Tensor:
    """The first test images as RGB in [0, 1], scaled and cropped with Pillow."""
    cut = (size - crop) // 2
    rows = []
    for position in pack.indices("test")[:16]:
        image = Image.fromarray(pack.view(int(position))[:, :, 0]).convert("RGB")
        scaled = np.asarray(image.resize((size, size), Image.Resampling(resample)))
        rows.append(scaled[cut : cut + crop, cut : cut + crop])
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2) / 255


def normalised(x: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    return (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


def embedded(pack: Pack, folder: Path, out: Path, **options: Any) -> Features:
    config = EmbedConfig(model=f"hf:{folder}", split="test", dtype="float32", **options)
    return embed_pack(config, pack, out)


def least_cosine(features: Features, wanted: torch.Tensor) -> float:
    ours = torch.from_numpy(np.array(features.array[: len(wanted)]))
    assert ours.shape == wanted.shape
    return float(torch.nn.functional.cosine_similarity(ours, wanted).min())


IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
HALF = ([0.5] * 3, [0.5] * 3)


def test_pooling_and_a_layer_exclude_each_other() -> None:
    config = EmbedConfig(model="hf:m", pooling="mean", features_from="encoder")
    with pytest.raises(ThresherError, match="pooling and `features_from` exclude each other"):
        config.check()


@torch.no_grad()
def test_a_dinov2_without_a_description_is_fed_as_its_family(
    tmp_path: Path, digits: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack, model = Pack.open(digits), make(tmp_path / "m", "dinov2")
    with caplog.at_level(logging.INFO, "thresher"):
        features = embedded(pack, tmp_path / "m", tmp_path / "f")
    assert "no preprocessor_config.json: using the defaults of its family" in caplog.text
    assert "dinov2 with pooling cls, images of 32 pixels, cropped to 28" in caplog.text
    x = normalised(images(pack, 32, 28), *IMAGENET)
    assert least_cosine(features, model(x).pooler_output) > 0.9999
    meta = features.meta
    assert (meta.image_size, meta.crop, meta.resample, meta.pooling) == (32, 28, "bicubic", "cls")
    assert meta.mean == tuple(IMAGENET[0])
    assert features.probabilities is None

    mean = embedded(pack, tmp_path / "m", tmp_path / "mean", pooling="mean")
    assert least_cosine(mean, model(x).last_hidden_state[:, 1:].mean(1)) > 0.9999


@torch.no_grad()
def test_a_clip_is_fed_as_its_folder_says(tmp_path: Path, digits: Path) -> None:
    """The reference is transformers' own image processor and its vision tower."""
    transformers = pytest.importorskip("transformers")
    pack, model = Pack.open(digits), make(tmp_path / "m", "clip")
    processor = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}, image_std=[0.3] * 3
    )
    processor.save_pretrained(tmp_path / "m")
    features = embedded(pack, tmp_path / "m", tmp_path / "f")
    pictures = [
        Image.fromarray(pack.view(int(p))[:, :, 0]).convert("RGB")
        for p in pack.indices("test")[:16]
    ]
    x = processor(pictures, return_tensors="pt")["pixel_values"]
    assert least_cosine(features, model.vision_model(x).pooler_output) > 0.9999
    own = embedded(pack, tmp_path / "m", tmp_path / "own", image_size=32, mean=(0.1, 0.2, 0.3))
    x = normalised(images(pack, 32, 32), [0.1, 0.2, 0.3], [0.3] * 3)
    assert least_cosine(own, model.vision_model(x).pooler_output) > 0.9999


@torch.no_grad()
def test_a_resnet_and_its_half_precision_twin(tmp_path: Path, digits: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pack, model = Pack.open(digits), make(tmp_path / "m", "resnet")
    processor = transformers.ConvNextImageProcessorPil(
        size={"shortest_edge": 56}, image_mean=IMAGENET[0], image_std=IMAGENET[1]
    )
    processor.save_pretrained(tmp_path / "m")
    features = embedded(pack, tmp_path / "m", tmp_path / "f")
    assert (features.meta.image_size, features.meta.crop) == (64, 56)
    x = normalised(images(pack, 64, 56), *IMAGENET)
    wanted = model(x).pooler_output.flatten(1)
    assert least_cosine(features, wanted) > 0.9999
    layer = embedded(pack, tmp_path / "m", tmp_path / "l", features_from="model.embedder", crop=48)
    assert (layer.array.shape, layer.meta.crop) == ((360, 8), 48)
    model.half().save_pretrained(tmp_path / "half")
    half = embedded(pack, tmp_path / "half", tmp_path / "h", image_size=64, crop=56)
    assert least_cosine(half, wanted) > 0.999


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "size", "normalisation", "resample"),
    [
        ("dinov2_with_registers", (32, 28), IMAGENET, 3),
        ("dinov3_vit", (32, 32), IMAGENET, 2),
        ("dinov3_convnext", (224, 224), IMAGENET, 2),
        ("siglip", (32, 32), HALF, 3),
        ("vit", (32, 32), HALF, 2),
        ("convnext", (37, 32), IMAGENET, 3),
    ],
)
def test_every_family(
    tmp_path: Path, digits: Path, kind: str, size: Any, normalisation: Any, resample: int
) -> None:
    pack, model = Pack.open(digits), make(tmp_path / "m", kind)
    if kind == "dinov3_convnext":  # 360 images of 224 pixels would take long
        size = (64, 64)
        features = embedded(pack, tmp_path / "m", tmp_path / "f", image_size=64)
    else:
        features = embedded(pack, tmp_path / "m", tmp_path / "f")
    x = normalised(images(pack, size[0], size[1], resample), *normalisation)
    output = (model.vision_model if kind == "siglip" else model)(x)
    wanted = output.last_hidden_state[:, 0] if kind == "vit" else output.pooler_output
    assert least_cosine(features, wanted.flatten(1)) > 0.9999
    if kind == "dinov2_with_registers":
        mean = embedded(pack, tmp_path / "m", tmp_path / "mean", pooling="mean")
        assert least_cosine(mean, output.last_hidden_state[:, 4:].mean(1)) > 0.9999


def test_the_command_prints_only_its_result(tmp_path: Path, digits: Path, thresher: Run) -> None:
    make(tmp_path / "m", "vit")
    flags = ["--model", f"hf:{tmp_path / 'm'}", "--data", digits, "--out", tmp_path / "F"]
    done = thresher("embed", *flags, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dimension"] == 32
    assert "Loading" not in done.stderr
    assert Features.open(tmp_path / "F").meta.model == f"hf:{tmp_path / 'm'}"


def test_weights_that_lack_a_used_tensor_are_refused(tmp_path: Path, digits: Path) -> None:
    """transformers itself fills such tensors with random numbers."""
    pack = Pack.open(digits)
    make(tmp_path / "m", "vit")
    file = tmp_path / "m" / "model.safetensors"
    state = load_file(file)
    without_pooler = {k: v for k, v in state.items() if not k.startswith("pooler.")}
    save_file(without_pooler, file, {"format": "pt"})
    assert embedded(pack, tmp_path / "m", tmp_path / "f").array.shape == (360, 32)
    with pytest.raises(ThresherError, match=r'no tensor "pooler.*use `pooling` cls or mean'):
        embedded(pack, tmp_path / "m", tmp_path / "g", pooling="pooled")
    del without_pooler["layernorm.weight"]
    save_file(without_pooler, file, {"format": "pt"})
    with pytest.raises(ThresherError, match=r'have no tensor "layernorm.weight", which'):
        embedded(pack, tmp_path / "m", tmp_path / "g")


def test_bad_folders(
    tmp_path: Path, digits: Path, thresher: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = Pack.open(digits)
    folder = tmp_path / "m"
    make(folder, "resnet")

    def says(model: str | None = None, **options: Any) -> str:
        config = EmbedConfig(model=model or f"hf:{folder}", **options)
        with pytest.raises(ThresherError) as caught:
            embed_pack(config, pack, tmp_path / "f")
        assert not list(tmp_path.glob("*f*"))
        return str(caught.value)

    assert "no folder and no cached model" in says("hf:nobody/nothing")
    assert "weights are those in the folder" in says(weights=folder / "model.safetensors")
    assert "resnet models have none; use mean or pooled" in says(pooling="cls")
    assert "mean must have 3 values, one per channel" in says(mean=(0.5,))
    assert "pooling is for hf: models" in says("tiny", pooling="cls")
    with pytest.raises(ThresherError, match="computes features and cannot be trained; use it in"):
        check(f"hf:{folder}")

    damaged = folder / "preprocessor_config.json"
    damaged.write_text('{"size": {"height": 20, "width": 30}}')
    assert "preprocessor_config.json is not understood (size" in says()
    damaged.unlink()

    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"resnet"', '"resnext"'))
    assert 'the model_type "resnext", which is not supported; did you mean "resnet"?' in says()
    (folder / "config.json").unlink()
    assert "m has no config.json; give the folder" in says()
    (folder / "config.json").write_text(text)

    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:1000])
    assert "m cannot be loaded (" in says()
    file.unlink()
    assert "m has no model.safetensors; save the model with" in says()
    done = thresher("embed", "--model", f"hf:{folder}", "--data", digits, "--out", tmp_path / "f")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    file.write_bytes(whole)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "need transformers, which is not installed; pip install transformers" in says()


def test_a_model_of_the_cache_is_found_by_its_name(
    tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub.constants")
    make(tmp_path / "m", "resnet")
    snapshot = tmp_path / "hub" / "models--me--small" / "snapshots" / ("0" * 40)
    shutil.copytree(tmp_path / "m", snapshot)
    refs = tmp_path / "hub" / "models--me--small" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    config = EmbedConfig(model="hf:me/small", split="test", image_size=32)
    assert embed_pack(config, Pack.open(digits), tmp_path / "f").array.shape == (360, 16)


@pytest.mark.parametrize(
    ("said", "factor"),
    [({}, 1 / 255), ({"rescale_factor": 1 / 127.5}, 1 / 127.5), ({"do_rescale": False}, 1.0)],
)
def test_mean_and_std_belong_to_the_pixels_as_the_folder_scales_them(
    said: dict[str, Any], factor: float
) -> None:
    own = SimpleNamespace(image_size=32)
    values = {"image_mean": [1.0, 2.0, 3.0], "image_std": [4.0, 5.0, 6.0], **said}
    images = _read_preprocessing(values, FAMILIES["vit"], own)
    for channel in range(3):
        wanted = (200 * factor - values["image_mean"][channel]) / values["image_std"][channel]
        ours = (200 / 255 - images.mean[channel]) / images.std[channel]
        assert ours == pytest.approx(wanted)


def test_another_way_to_scale_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    own = SimpleNamespace(image_size=32)
    assert _read_preprocessing({"resample": 1}, FAMILIES["vit"], own).resample == "bilinear"
    assert "scaled by method 1 of Pillow, which is not supported: using bilinear" in caplog.text


def test_every_family_names_a_class_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for family in FAMILIES.values():
        assert hasattr(transformers, family.model)
