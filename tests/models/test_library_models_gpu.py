"""Networks of torchvision and timm are fed as their libraries do it.

These tests run where there is a GPU: beside a CPU build of torch, torchvision cannot be imported.
"""

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from made_images import class_folder
from thresher import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    root = tmp_path_factory.mktemp("library")
    return write_pack(Folder(class_folder(root / "images", each=6)), root / "pack")


def _embed(pack: Pack, name: str, model: torch.nn.Module, tmp_path: Path) -> np.ndarray:
    file = tmp_path / "weights.safetensors"
    save_file(model.state_dict(), file)
    config = EmbedConfig(model=name, weights=file, dtype="float32", device="cpu")
    return np.array(embed_pack(config, pack, tmp_path / "features").array)


def _agree(pack: Pack, ours: np.ndarray, transform: Any, features: Any) -> None:
    positions = pack.indices("train")
    opened = [Image.open(io.BytesIO(pack.encoded(int(p)))).convert("RGB") for p in positions]
    with torch.no_grad():
        wanted = features(torch.stack([transform(image) for image in opened]))
    cosine = torch.nn.functional.cosine_similarity(torch.from_numpy(ours), wanted)
    assert cosine.min() > 0.9999


def test_torchvision(pack: Pack, tmp_path: Path) -> None:
    models = importlib.import_module("torchvision.models")
    torch.manual_seed(0)
    model = models.resnet18(weights=None).eval()
    ours = _embed(pack, "torchvision:resnet18", model, tmp_path)
    transform = models.get_model_weights("resnet18").DEFAULT.transforms()
    model.fc = torch.nn.Identity()
    _agree(pack, ours, transform, model)


def test_timm(pack: Pack, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    model = timm.create_model("resnet18.a1_in1k", pretrained=False).eval()
    ours = _embed(pack, "timm:resnet18.a1_in1k", model, tmp_path)
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    model.reset_classifier(0)
    _agree(pack, ours, transform, model)
