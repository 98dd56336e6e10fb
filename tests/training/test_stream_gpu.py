"""Images that are decoded while training, on a GPU: captured steps, and nvJPEG."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from made_images import class_folder, mixed_folder
from thresher import Pack, TrainConfig, train
from thresher.data import loader as loader_module
from thresher.data.crop_reader import Draw, ImageReader
from thresher.data.crops import ResizedCrop, resample
from thresher.data.hashing import sample_keys
from thresher.data.loader import Loader
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    root = tmp_path_factory.mktemp("stream")
    return write_pack(Folder(class_folder(root / "images", each=40)), root / "pack")


def _weights(pack: Pack, out: Path, **options: Any) -> dict[str, torch.Tensor]:
    config = TrainConfig(
        data=str(pack.root),
        out=str(out),
        model="resnet20",
        epochs=3,
        batch_size=16,
        image_size=24,
        lr=0.02,
        precision="fp64",
        device="cuda",
        **options,
    )
    train(config, quiet=True)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("decoder", ["cpu", "gpu"])
def test_streamed_steps_mean_the_same_captured_and_eager(
    encoded: Pack, tmp_path: Path, decoder: str
) -> None:
    eager = _weights(encoded, tmp_path / "eager", graph="off", decoder=decoder)
    captured = _weights(encoded, tmp_path / "captured", graph="on", decoder=decoder)
    for name, value in eager.items():
        assert (captured[name].double() - value.double()).abs().max() < 1e-6


@pytest.mark.parametrize("inside", [True, False])
def test_the_kernel_scales_as_the_reference_does(inside: bool) -> None:
    from thresher.data.crop_kernel import crop_images

    crop, worst, wrong, count = ResizedCrop(32), 0, 0, 0
    for seed, (height, width) in enumerate([(40, 50), (90, 61), (20, 25), (33, 900)]):
        noise = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (5, height, width, 3), generator=noise, dtype=torch.uint8)
        sizes = torch.tensor([[height, width]] * 5)
        keys = torch.randint(0, 1 << 60, (5,), generator=noise)
        boxes = crop.random_boxes(keys, 1, 2, sizes) if inside else crop.centre_boxes(sizes)
        planes = images.permute(0, 3, 1, 2).contiguous().to(CUDA)
        sources = torch.tensor([[plane.data_ptr(), height, width] for plane in planes])
        ours = torch.empty(5, 32, 32, 3, dtype=torch.uint8, device=CUDA)
        crop_images(sources, boxes, ours, inside)
        difference = (ours.cpu().int() - resample(images, boxes, 32, inside).int()).abs()
        worst, wrong = max(worst, int(difference.max())), wrong + int((difference > 0).sum())
        count += difference.numel()
    assert worst <= 1
    assert wrong < 0.03 * count


def test_both_decoders_cut_the_same_crops(encoded: Pack) -> None:
    from thresher.data.device_crop_reader import DeviceCropReader

    positions = encoded.indices("train")[:24]
    keys = sample_keys(encoded.ids.take(positions).to_pylist())
    reader = DeviceCropReader(encoded, ResizedCrop(48), CUDA)
    for draw in (Draw(2, 7), None):
        ours = reader.read(positions, keys, draw).cpu().numpy().astype(int)
        other = np.empty((24, 48, 48, 3), np.uint8)
        ImageReader(encoded, ResizedCrop(48), 4).read(positions, keys, draw, other)
        # Color is stored at half the resolution; decoders differ in how they enlarge it.
        assert np.abs(ours - other).mean() < 4
        alone = reader.read(positions[5:6], keys[5:6], draw).cpu().numpy()
        assert (alone == ours[5:6]).all()


def test_defaults_decode_on_the_gpu_in_bf16(encoded: Pack, tmp_path: Path) -> None:
    config = TrainConfig(
        data=str(encoded.root), out=str(tmp_path / "run"), epochs=1, batch_size=16, image_size=24
    )
    result = train(config, quiet=True)
    assert (result.resolved.decoder, result.resolved.precision) == ("nvJPEG", "bf16")
    assert result.resolved.slow_decoded == 0


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_batches_that_are_read_beside_steps_are_those_read_alone(
    encoded: Pack, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No buffer is used again while a copy or a crop still reads it."""
    from thresher.data.device_crop_reader import DeviceCropReader

    on_gpu = kind != "cpu"
    monkeypatch.setattr(loader_module, "_PROCESSES_FROM", 1)
    crop, draw = ResizedCrop(32), Draw(1, 3)
    positions = np.random.default_rng(0).choice(encoded.indices("train"), (60, 32))
    loader = Loader(encoded, device=CUDA, size=crop, threads=4)
    if on_gpu:
        loader.device_crops = DeviceCropReader(encoded, crop, CUDA)
    work = torch.randn(4096, 4096, device=CUDA)
    sums: list[torch.Tensor] = []
    for batch in loader.batches(positions, draw):
        for _ in range(5):  # milliseconds, so that the host runs ahead
            work = (work @ work).clamp_(-1, 1)
        sums.append(batch.images.clone())
    loader.close()
    keys = sample_keys(encoded.ids.to_pylist())
    for row, ours in zip(positions, sums, strict=True):
        if on_gpu:
            alone = DeviceCropReader(encoded, crop, CUDA).read(row, keys[row], draw).cpu()
        else:
            alone = torch.empty((32, 32, 32, 3), dtype=torch.uint8)
            ImageReader(encoded, crop, 2).read(row, keys[row], draw, alone.numpy())
        assert torch.equal(ours.cpu(), alone)


def test_memory_that_a_busy_stream_still_writes_is_not_decoded_to(encoded: Pack) -> None:
    from thresher.data.device_crop_reader import DeviceCropReader

    positions = encoded.indices("train")[:32]
    keys = sample_keys(encoded.ids.take(positions).to_pylist())
    reader = DeviceCropReader(encoded, ResizedCrop(32), CUDA)
    right = reader.read(positions, keys, Draw(1, 3)).cpu()
    work = torch.randn(8192, 8192, device=CUDA)
    for _ in range(10):
        for _ in range(3):
            work = (work @ work).clamp_(-1, 1)
        # The memory of these images comes from what the next kernels write to and is freed now.
        freed = [torch.empty(16 << 20, dtype=torch.uint8, device=CUDA).fill_(7) for _ in range(4)]
        del freed
        assert torch.equal(reader.read(positions, keys, Draw(1, 3)).cpu(), right)


def test_what_nvjpeg_does_not_read_is_decoded_all_the_same(tmp_path: Path) -> None:
    from thresher.data.device_crop_reader import DeviceCropReader

    pack = write_pack(Folder(mixed_folder(tmp_path / "images")), tmp_path / "pack")
    positions = np.arange(len(pack))
    keys = sample_keys(pack.ids.to_pylist())
    reader = DeviceCropReader(pack, ResizedCrop(24), CUDA)
    ours = reader.read(positions, keys, None)
    assert reader.slow_images.sum() == 3
    other = np.empty((len(pack), 24, 24, 3), np.uint8)
    ImageReader(pack, ResizedCrop(24), 1).read(positions, keys, None, other)
    assert np.abs(ours.cpu().numpy().astype(int) - other).mean() < 4
