"""Near-copies by pixels: of any size, aspect and compression, and no others."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.sources.npz import Npz
from thresher.data.write import write_pack
from thresher.select.copies import near_copies, pixel_vectors


def test_files_that_were_scaled_squeezed_compressed_and_brightened(
    tmp_path: Path, cifar10: Path
) -> None:
    pack = Pack.open(cifar10)
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    for n, position in enumerate(pack.indices("train")[:120]):
        image = Image.fromarray(pack.view(int(position))).resize((64 + n % 30, 64))
        image.save(folder / f"{n:03}.png")
        if n < 20:
            changed = {
                0: image.resize((120, 70)),
                1: ImageEnhance.Brightness(image).enhance(0.8),
                2: ImageEnhance.Contrast(image).enhance(0.8),
                3: _compressed(image),
            }[n % 4]
            changed.save(folder / f"{n:03}-copy.png")
    files = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    assert files.image_shape is None
    found = near_copies(pixel_vectors(files, np.arange(len(files))))
    ids = files.ids.to_pylist()
    pairs = {(ids[a][2:5], ids[b][2:5]) for a, b in zip(found.later, found.earlier, strict=True)}
    copies = {(f"{n:03}", f"{n:03}") for n in range(20)}
    assert len(pairs & copies) >= 19
    assert pairs <= copies
    assert (found.similarity > 0.95).all()


def _compressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60)
    return Image.open(file)


def test_digits_have_no_copies_and_blank_images_are_none(digits: Path) -> None:
    pack = Pack.open(digits)
    x = pixel_vectors(pack, np.arange(len(pack)))
    assert len(near_copies(x).later) == 0
    twice = np.concatenate([x, x[:5], np.zeros((4, x.shape[1]), np.float32)])
    found = near_copies(twice)
    assert found.earlier.tolist() == [0, 1, 2, 3, 4]
    assert len(near_copies(x[:1]).later) == 0


def test_raw_images_are_compared_whole_and_not_by_their_centre(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 16, 64, 3), dtype=np.uint8)
    images[1, :, 24:40] = images[0, :, 24:40]  # the same centre, other sides
    images[3] = images[2]
    np.savez(tmp_path / "wide.npz", images=images, labels=np.zeros(30, int))
    pack = write_pack(Npz(tmp_path / "wide.npz"), tmp_path / "pack")
    found = near_copies(pixel_vectors(pack, np.arange(30)))
    assert (found.later.tolist(), found.earlier.tolist()) == ([3], [2])
