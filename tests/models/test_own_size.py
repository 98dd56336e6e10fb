"""Models in Hugging Face's format whose folder says that images are not resized."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from made_images import picture
from thresher.data.images import decode
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError
from thresher.models.embed import embed_pack
from thresher.models.embed_config import EmbedConfig
from thresher.models.features import Features

pytestmark = pytest.mark.slow  # imports transformers


@pytest.fixture(autouse=True)
def _transformers() -> None:
    """Skip where it is missing; not imported by workers that only collect these tests."""
    pytest.importorskip("transformers")


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def make_vit(folder: Path, side: int, **values: Any) -> Any:
    """Save a small model for images of this side that are not resized."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=side, patch_size=2)
    model = transformers.ViTModel(config)
    model.save_pretrained(folder)
    say(folder, **values)
    return model.eval()


def say(folder: Path, **values: Any) -> None:
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 16, "width": 16}}
    text = json.dumps({**half, "do_resize": False, **values})
    (folder / "preprocessor_config.json").write_text(text)


def embedded(pack: Pack, folder: Path, out: Path, split: str = "test", **options: Any) -> Features:
    config = EmbedConfig(model=f"hf:{folder}", split=split, dtype="float32", **options)
    return embed_pack(config, pack, out)


def encoded_pack(folder: Path, *sizes: tuple[int, int]) -> Pack:
    (folder / "images" / "a").mkdir(parents=True)
    for n, (width, height) in enumerate(sizes):
        (folder / "images" / "a" / f"{n}.png").write_bytes(picture(n, width, height))
    return write_pack(Folder(folder / "images"), folder / "pack", WriteOptions(processes=1))


def assert_close(features: Features, wanted: torch.Tensor) -> None:
    ours = torch.from_numpy(np.array(features.array[: len(wanted)]))
    assert float(torch.nn.functional.cosine_similarity(ours, wanted).min()) > 0.9999


@torch.no_grad()
@pytest.mark.parametrize("crop", [None, 6])
def test_images_keep_their_size_as_in_transformers(
    tmp_path: Path, digits: Path, crop: int | None
) -> None:
    transformers = pytest.importorskip("transformers")
    pack, model = Pack.open(digits), make_vit(tmp_path / "m", crop or 8)
    cut = {"do_center_crop": crop is not None, "crop_size": {"height": crop, "width": crop}}
    if crop is not None:
        say(tmp_path / "m", **cut)
    processor = transformers.CLIPImageProcessorPil(
        do_resize=False, image_mean=[0.5] * 3, image_std=[0.5] * 3, **cut
    )
    features = embedded(pack, tmp_path / "m", tmp_path / "f")
    assert (features.meta.image_size, features.meta.crop) == (None, crop)
    pictures = [
        Image.fromarray(pack.view(int(p))[:, :, 0]).convert("RGB")
        for p in pack.indices("test")[:16]
    ]
    x = processor(pictures, return_tensors="pt")["pixel_values"]
    assert x.shape[2:] == (crop or 8, crop or 8)
    assert_close(features, model(x).last_hidden_state[:, 0])


@torch.no_grad()
def test_encoded_images_of_one_size_keep_it(tmp_path: Path) -> None:
    pack = encoded_pack(tmp_path, (140, 140), (140, 140))
    assert pack.image_shape is None
    model = make_vit(tmp_path / "m", 140)
    features = embedded(pack, tmp_path / "m", tmp_path / "f", "train")
    x = torch.from_numpy(np.stack([decode(pack.encoded(n)) for n in range(2)]))
    x = x.permute(0, 3, 1, 2) / 127.5 - 1
    assert_close(features, model(x).last_hidden_state[:, 0])


def test_sizes_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path, digits: Path) -> None:
    pack, folder = Pack.open(digits), tmp_path / "m"
    make_vit(folder, 16)

    def message(pack: Pack, split: str = "test", **options: Any) -> str:
        with pytest.raises(ThresherError) as caught:
            embedded(pack, folder, tmp_path / "f", split, **options)
        assert not list(tmp_path.glob("*f*"))
        return str(caught.value)

    said = message(pack)
    assert f"{folder} does not take images of 8×8 pixels (" in said
    assert said.endswith("); give `image_size`")
    assert message(pack, image_size=12).endswith("); give another `image_size`")
    say(folder, do_center_crop=True, crop_size=16)
    begin = "the model takes images that are not resized, but those of "
    assert message(pack) == (
        f"{begin}digits (8×8) are smaller than its crop of 16; give `image_size`"
    )
    assert embedded(pack, folder, tmp_path / "good", image_size=16).array.shape == (360, 32)
    uneven = encoded_pack(tmp_path / "uneven", (20, 20), (30, 20))
    assert message(uneven, "train") == (
        f"{begin}images differ in size (20×20, 20×30); give `image_size`"
    )
    wide = encoded_pack(tmp_path / "wide", (150, 140))
    assert message(wide, "train") == f"{begin}images are not square (140×150); give `image_size`"
