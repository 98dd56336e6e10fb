"""Write a synthetic data set with ImageNet's sizes, so that anyone can measure without ImageNet.

    python -m benchmarks.imagenet_like OUT --images 8000 --classes 100

Folders train/CLASS and val/CLASS of color JPEGs. Most are 500×375 or 375×500 pixels, as in
ImageNet, some smaller and some larger, about 110 kB each (`--quality 68`: 60 kB). The content is
fractal noise whose colors depend on the class, so that a network can learn it and decoding costs
what photographs cost.
"""

import argparse
import io
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

SIZES = ((500, 375), (375, 500), (500, 333), (640, 480), (300, 225), (1024, 768))
SHARES = (0.5, 0.2, 0.14, 0.08, 0.06, 0.02)
SIDE = 1280


@lru_cache(maxsize=1)
def canvas() -> np.ndarray:
    """Return noise with the spectrum of photographs (power falls as 1/f²), (side, side, 3)."""
    random = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None])
    spectrum = 1 / np.maximum(frequency, 1 / SIDE)
    channels = []
    for _ in range(3):
        phase = np.exp(2j * np.pi * random.random(spectrum.shape))
        channel = np.fft.irfft2(spectrum * phase, (SIDE, SIDE))
        channels.append(channel / channel.std())
    return np.stack(channels, -1)


def write_image(root: str, classes: int, quality: int, number: int) -> int:
    """Write one image; one of twenty is in val. Return its bytes."""
    random = np.random.default_rng(number)
    label = number % classes
    width, height = SIZES[random.choice(len(SIZES), p=SHARES)]
    top, left = random.integers(0, SIDE - height), random.integers(0, SIDE - width)
    pixels = canvas()[top : top + height, left : left + width]
    colour = np.random.default_rng(label).normal(0, 25, 3)
    grain = random.normal(0, 9, (height, width, 1))
    image = np.clip(120 + 48 * pixels + colour + grain, 0, 255).astype(np.uint8)
    split = "val" if (number // classes) % 20 == 19 else "train"
    path = Path(root, split, f"n{label:04}", f"{number}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    path.write_bytes(file.getvalue())
    return file.tell()


def write(root: Path, images: int, classes: int, quality: int = 87) -> int:
    """Write the data set in parallel; return its bytes."""
    with ProcessPoolExecutor() as pool:
        one = partial(write_image, str(root), classes, quality)
        return sum(pool.map(one, range(images), chunksize=64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("build/imagenet-like"))
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--quality", type=int, default=87)
    options = parser.parse_args()
    size = write(options.out, options.images, options.classes, options.quality)
    print(f"{options.images:,} images, {size / options.images / 1000:.0f} kB each: {options.out}")


if __name__ == "__main__":
    main()
