"""How fast are JPEGs of ImageNet's size read, cropped and given to the network?

    python -m benchmarks.imagenet_size --images 2000

Our loader against PyTorch's DataLoader with Pillow (what torchvision's ImageFolder does), the same
random-resized crops, as many threads or worker processes as there are cores, in turn, several
rounds; the files are in the page cache. Data: `benchmarks.imagenet_like`.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.imagenet_like import write
from benchmarks.machine import describe
from thresher.data.crop_reader import Draw
from thresher.data.crops import ResizedCrop
from thresher.data.hashing import sample_keys
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.environment import core_count
from thresher.paths import write_json

BATCH = 256
CROP = ResizedCrop(224)


class Files(Dataset[tuple[torch.Tensor, int]]):
    """The same images as files, decoded and cropped by Pillow."""

    def __init__(self, root: Path, pack: Pack, positions: np.ndarray) -> None:
        self.root, self.positions = root, positions
        self.ids = pack.ids.take(positions).to_pylist()
        self.labels = pack.labels[positions]
        self.keys = torch.from_numpy(sample_keys(self.ids))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        with Image.open(io.BytesIO((self.root / self.ids[n]).read_bytes())) as opened:
            image = opened.convert("RGB")
        sizes = torch.tensor([[image.height, image.width]])
        top, left, height, width = CROP.random_boxes(self.keys[n : n + 1], 0, 0, sizes)[0].tolist()
        part = image.crop((int(left), int(top), int(left + width), int(top + height)))
        scaled = part.resize((CROP.size, CROP.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(scaled)), int(self.labels[n])


def ours(pack: Pack, order: np.ndarray) -> Iterator[torch.Tensor]:
    loader = Loader(pack, order, size=CROP)
    cuts = [order[begin : begin + BATCH] for begin in range(0, len(order), BATCH)]
    for batch in loader.batches(cuts, Draw(0, 0)):
        yield batch.images


def theirs(files: Files) -> Iterator[torch.Tensor]:
    for images, _ in DataLoader(files, BATCH, num_workers=core_count()):
        yield images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        size = write(root, options.images, 10) / options.images
        pack = write_pack(Folder(root), Path(folder, "pack"))
        order = np.random.default_rng(0).permutation(pack.indices("train"))
        files = Files(root, pack, order)
        seconds: dict[str, list[float]] = {"Thresher": [], "DataLoader": []}
        worst = 0
        for _ in range(options.rounds):
            pairs = {"Thresher": ours(pack, order), "DataLoader": theirs(files)}
            seen = {}
            for name, batches in pairs.items():
                begun = time.perf_counter()
                seen[name] = list(batches)
                seconds[name].append(time.perf_counter() - begun)
            for one, other in zip(*seen.values(), strict=True):
                worst = max(worst, int((one.int() - other.int()).abs().max()))
    rates = {name: len(order) / statistics.median(s) for name, s in seconds.items()}
    ratio = rates["Thresher"] / rates["DataLoader"]
    print(f"{len(order):,} JPEGs of {size / 1000:.0f} kB to 224×224, {core_count()} cores")
    for name, rate in rates.items():
        print(f"{name:12} {rate:8,.0f} images/s")
    print(f"ratio {ratio:.2f}; largest difference of a pixel {worst} of 255")
    if options.out:
        found = {"images": len(order), "cores": core_count(), "images_per_s": rates}
        write_json(options.out, {"machine": describe(), **found, "ratio": ratio})


if __name__ == "__main__":
    main()
