"""Random-resized crops: drawn as defined, resampled as Pillow does, the same everywhere."""

import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp

from made_images import class_folder, picture
from thresher.data.augment import Augment
from thresher.data.crop_reader import Draw
from thresher.data.crops import ResizedCrop, resample
from thresher.data.hashing import sample_keys
from thresher.data.images import decode, decode_box, jpeg_frame, read_header, resized
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError

KEYS = torch.from_numpy(sample_keys(f"train/{n}.jpg" for n in range(20_000)))


def sizes(n: int, height: int = 375, width: int = 500) -> torch.Tensor:
    return torch.tensor([[height, width]]).expand(n, 2)


def defined_boxes(n: int, height: int, width: int, crop: ResizedCrop) -> np.ndarray:
    """Draw boxes by the definition, with numpy's generator."""
    random = np.random.default_rng(7)
    boxes = []
    for _ in range(n):
        for _ in range(10):
            area = height * width * random.uniform(crop.area, 1)
            ratio = math.exp(random.uniform(-math.log(crop.ratio), math.log(crop.ratio)))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= width and 0 < high <= height:
                top = random.integers(0, height - high + 1)
                left = random.integers(0, width - wide + 1)
                boxes.append((top, left, high, wide))
                break
    return np.array(boxes, float)


@pytest.mark.slow
@pytest.mark.parametrize("crop", [ResizedCrop(224), ResizedCrop(224, area=0.35, ratio=2.0)])
def test_boxes_have_the_distribution_of_the_definition(crop: ResizedCrop) -> None:
    ours = crop.random_boxes(KEYS, 3, 5, sizes(len(KEYS))).numpy()
    theirs = defined_boxes(len(KEYS), 375, 500, crop)
    for name, of in {
        "area": lambda b: b[:, 2] * b[:, 3],
        "ratio": lambda b: b[:, 3] / b[:, 2],
        "top": lambda b: b[:, 0] / np.maximum(1, 375 - b[:, 2]),
        "left": lambda b: b[:, 1] / np.maximum(1, 500 - b[:, 3]),
    }.items():
        assert ks_2samp(of(ours), of(theirs)).pvalue > 0.01, name
    whole = ours.astype(int)
    assert (whole == ours).all()
    assert (whole >= [0, 0, 1, 1]).all()
    assert (whole[:, :2] + whole[:, 2:] <= [375, 500]).all()


def test_a_box_depends_on_sample_epoch_and_seed_only() -> None:
    crop, order = ResizedCrop(64), torch.randperm(500, generator=torch.Generator().manual_seed(0))
    boxes = crop.random_boxes(KEYS[:500], 1, 2, sizes(500))
    assert torch.equal(crop.random_boxes(KEYS[:500][order], 1, 2, sizes(500)), boxes[order])
    on_device = crop.random_boxes(KEYS[:500], torch.tensor(1), torch.tensor(2), sizes(500))
    assert torch.equal(on_device, boxes)
    for epoch, seed in ((2, 2), (1, 3)):
        other = crop.random_boxes(KEYS[:500], epoch, seed, sizes(500))
        assert (other != boxes).any(1).float().mean() > 0.99


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (1, 1)])
def test_an_image_that_no_box_fits_gives_its_centre(height: int, width: int) -> None:
    boxes = ResizedCrop(8).random_boxes(KEYS[:200], 0, 0, sizes(200, height, width))
    ends = boxes[:, :2] + boxes[:, 2:]
    assert (boxes[:, 2:] >= 1).all()
    assert (ends <= torch.tensor([height, width])).all()
    centred = ResizedCrop(8, area=1.0).random_boxes(KEYS[:1], 0, 0, sizes(1, 10, 1000))[0]
    assert centred.tolist() == [0, (1000 - 13) // 2, 10, 13]


@pytest.mark.parametrize(
    "box", [(3, 5, 60, 41), (0, 0, 90, 120), (10, 20, 9, 12), (80, 110, 10, 10)]
)
def test_resampled_pixels_are_those_of_pillow(box: tuple[int, int, int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    top, left, height, width = box
    part = Image.fromarray(image).crop((left, top, left + width, top + height))
    expected = np.asarray(part.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    boxes = torch.tensor([box], dtype=torch.float64)
    ours = resample(torch.from_numpy(image)[None], boxes, 32, inside=True)[0].numpy()
    # Pillow rounds after each of the two directions, we once.
    assert np.abs(ours - expected).max() <= 1


def test_evaluation_scales_the_short_side_and_cuts_the_centre() -> None:
    image = np.random.default_rng(1).integers(0, 256, (320, 480, 3), dtype=np.uint8)
    crop = ResizedCrop(224)
    assert crop.short_side == 256
    scaled = Image.fromarray(image).resize((384, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(scaled.crop((80, 16, 304, 240))).astype(int)
    ours = crop.centre(torch.from_numpy(image)[None])[0].numpy()
    assert np.abs(ours - expected).max() <= 1


@pytest.mark.parametrize("size", [8, 32, 64, 160, 176])
def test_features_are_those_of_the_images_of_evaluation(size: int) -> None:
    """`embed` scales whole images and cuts whole pixels, training's evaluation a box."""
    image = np.random.default_rng(1).integers(0, 256, (1, 90, 90, 1), dtype=np.uint8)
    crop = ResizedCrop(size)
    scaled = torch.from_numpy(resized(image, crop.short_side))
    cut = Augment([0.0], [1 / 255], crop=size).evaluate(scaled)
    ours = Augment([0.0], [1 / 255], crop_padding=0, resized=crop).evaluate(torch.from_numpy(image))
    assert (ours - cut).abs().max() <= 1.01


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_decoded_box_is_that_of_the_whole_image(kind: str, mode: str) -> None:
    if mode == "CMYK" and kind != "JPEG":
        kind = "TIFF"
    file = picture(3, 140, 100, kind, mode)
    assert read_header(file).size == (100, 140)
    whole = torch.tensor(decode(file))[None]
    for box, inside in (((10, 20, 60, 80), True), ((12.5, 32.5, 75.0, 75.0), False)):
        expected = resample(whole, torch.tensor([box], dtype=torch.float64), 48, inside)
        ours = decode_box(file, box, 48, inside)
        rough = inside and (kind, mode) == ("JPEG", "RGB")  # the faster cosine transform
        assert np.abs(ours.astype(int) - expected[0].numpy()).max() <= (4 if rough else 1)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size() -> None:
    file, box = picture(5, 1600, 1200), (100, 200, 1000, 1100)
    expected = resample(
        torch.from_numpy(decode(file))[None], torch.tensor([box], dtype=torch.float64), 96, True
    )
    difference = decode_box(file, box, 96, True).astype(int) - expected[0].numpy()
    assert np.abs(difference).mean() < 1.0
    assert np.abs(difference).max() <= 12


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("CMYK", 4)])
@pytest.mark.parametrize("progressive", [False, True])
def test_the_frame_header_has_size_and_channels(
    mode: str, channels: int, progressive: bool
) -> None:
    file = io.BytesIO()
    Image.new(mode, (9, 7)).save(file, "JPEG", progressive=progressive, comment=b"x" * 300)
    assert jpeg_frame(file.getvalue()) == (7, 9, channels)
    for end in (0, 2, 3, 5, 25):
        assert jpeg_frame(file.getvalue()[:end]) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_is_upright(orientation: int) -> None:
    upright = np.zeros((40, 60, 3), np.uint8)
    upright[:20, :30] = 255
    back = {1: 0, 2: 0, 3: 180, 4: 180, 5: 270, 6: 90, 7: 90, 8: 270}[orientation]
    stored = Image.fromarray(upright).rotate(back, expand=True)
    if orientation in (2, 4, 5, 7):
        stored = stored.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    exif = Image.Exif()
    exif[0x0112] = orientation
    target = io.BytesIO()
    stored.save(target, "JPEG", exif=exif, quality=95)
    file = target.getvalue()
    assert read_header(file).size == (40, 60)
    for image in (decode(file), decode_box(file, (0, 0, 40, 60), 40, True)):
        half_h, half_w = image.shape[0] // 2, image.shape[1] // 2
        assert image[: half_h - 4, : half_w - 4].min() > 200
        assert image[half_h + 4 :].max() < 55
        assert image[:, half_w + 4 :].max() < 55


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    root = tmp_path_factory.mktemp("crops")
    return write_pack(Folder(class_folder(root / "images")), root / "pack")


def test_a_crop_does_not_depend_on_the_batch_or_the_threads(encoded: Pack) -> None:
    positions = encoded.indices("train")
    crop, draw = ResizedCrop(12), Draw(epoch=4, seed=1)
    whole = Loader(encoded, positions, size=crop, threads=1)
    assert not whole.resident
    (together,) = whole.batches([positions], draw)
    for world in (2, 3):
        parts = np.array_split(positions, world)
        apart = [*Loader(encoded, positions, size=crop, threads=3).batches(parts, draw)]
        assert torch.equal(torch.cat([part.images for part in apart]), together.images)
    (other,) = whole.batches([positions], Draw(epoch=5, seed=1))
    assert not torch.equal(other.images, together.images)
    (centre,) = whole.batches([positions])
    assert torch.equal(centre.images, whole.batch(positions).images)


def test_augment_crops_raw_images_streamed_or_resident() -> None:
    images = torch.randint(0, 256, (6, 100, 120, 3), dtype=torch.uint8)
    rows, keys = torch.tensor([4, 1, 1]), KEYS[:6]
    augment = Augment((0.5,) * 3, (0.2,) * 3, crop_padding=0, resized=ResizedCrop(32))
    resident = augment(images, keys[rows], 2, 3, rows=rows)
    assert resident.shape == (3, 3, 32, 32)
    assert torch.equal(augment(images[rows], keys[rows], 2, 3), resident)
    assert torch.equal(resident[1], resident[2])
    assert augment.evaluate(images[rows]).shape == (3, 3, 32, 32)
    with pytest.raises(InvalidValueError, match="no effect on resized crops"):
        Augment((0.5,), (0.2,), crop=8, resized=ResizedCrop(32))
