"""Training from JPEGs of ImageNet's size against a bare loop, and the loader alone, in one run.

    python -m benchmarks.imagenet_training --out benchmarks/results/imagenet_training.json
    python -m benchmarks.imagenet_training --images 64 --model resnet20 --image-size 32 --batch 8

The bare loops train on one batch of random numbers that is already on the device: bf16, channels
last, eager and compiled. Ours reads a pack of JPEGs, decodes, crops, mirrors and records. The first
epoch is left out: it compiles, captures and reads from disk. Data: `benchmarks.imagenet_like`, each
file under several names, so that an epoch is longer than the filling of the queues at its start;
`--folder` keeps it for the next call. Without a GPU the defaults are the small setting. Rows are
written as they are measured.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.imagenet_like import write
from benchmarks.machine import describe, page, table
from thresher.data.crop_reader import Draw
from thresher.data.crops import ResizedCrop
from thresher.data.device_crop_reader import DeviceCropReader, missing_package
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.environment import core_count
from thresher.models import registry
from thresher.paths import RunPaths, write_json, write_text
from thresher.training import execution
from thresher.training.config import TrainConfig
from thresher.training.gpu_streams import open_queues
from thresher.training.train import train

CLASSES = 100
open_queues()  # `train` would, but the bare loops use the GPU before it
execution.SEARCHED = 0  # cuDNN searches for the fastest kernels, as in a run of many epochs
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")


@dataclass(frozen=True)
class Setting:
    """What is trained."""

    model: str
    side: int
    batch: int
    epochs: int


@dataclass(frozen=True)
class Row:
    """A measurement."""

    case: str
    images_per_s: float
    input_wait_share: float | None = None
    of_eager: float | None = None
    """Ratio to the bare eager loop."""
    of_compiled: float | None = None


def bare(setting: Setting, compiled: bool, seconds: float = 4.0) -> float:
    """Return the images per second of a plain loop on random data."""
    torch.backends.cudnn.benchmark = True
    model: Any = registry.build(setting.model, CLASSES).to(DEVICE)
    model = model.to(memory_format=torch.channels_last).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    images = torch.randn(setting.batch, 3, setting.side, setting.side, device=DEVICE)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (setting.batch,), device=DEVICE)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=ON_GPU):
                loss = F.cross_entropy(run(images).float(), labels)
            loss.backward()
            optimizer.step()
        if ON_GPU:
            torch.cuda.synchronize()

    steps(5)
    done, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        steps(10)
        done += 10
    return done * setting.batch / (time.perf_counter() - begun)


def ours(pack: Pack, setting: Setting, case: str, **options: Any) -> Row:
    """Train and return the speed after the first epoch."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=str(pack.root),
            out=f"{folder}/run",
            model=setting.model,
            image_size=setting.side,
            batch_size=setting.batch,
            epochs=setting.epochs,
            evaluate_every=0,
            **options,
        )
        train(config, quiet=True)
        text = RunPaths(Path(config.out)).metrics.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    first, *_, last = [line for line in lines if line["kind"] == "epoch"]
    samples, seconds = (last[name] - first[name] for name in ("samples", "seconds"))
    waited = [line["input_wait_share"] * line["seconds"] for line in (first, last)]
    return Row(case, samples / seconds, (waited[1] - waited[0]) / seconds)


def trained(pack: Pack, setting: Setting, everything: bool) -> Iterator[Row]:
    """Measure compiled steps with the GPU's decoder and eager ones with the CPU's; or all pairs."""
    kinds: list[dict[str, Any]] = [{"graph": "off"}, {"graph": "on"}]
    kinds.append({"graph": "on", "compile": True})
    cases = [("cpu", kinds[0])]
    if ON_GPU and not missing_package():
        cases.insert(0, ("gpu", kinds[2]))
    if ON_GPU and everything:
        decoders = list(dict.fromkeys(decoder for decoder, _ in cases))
        cases = [(decoder, kind) for decoder in decoders for kind in kinds]
    for decoder, kind in cases:
        words = {"off": "eager", "on": "captured"}[kind["graph"]]
        words += ", compiled" if kind.get("compile") else ""
        yield ours(pack, setting, f"decoder {decoder}, {words}", decoder=decoder, **kind)


def images_per_s(batches: Iterable[torch.Tensor]) -> float:
    count, begun = 0, time.perf_counter()
    for images in batches:
        count += len(images)
    if ON_GPU:
        torch.cuda.synchronize()
    return count / (time.perf_counter() - begun)


def loaders(pack: Pack, root: Path, setting: Setting) -> Iterator[Row]:
    """Measure the loaders alone: processes or workers are started within the measured time."""
    order = np.random.default_rng(0).permutation(pack.indices("train"))
    cuts = [order[n : n + setting.batch] for n in range(0, len(order), setting.batch)]
    crop = ResizedCrop(setting.side)
    for decoder in ["cpu", "gpu"] if ON_GPU and not missing_package() else ["cpu"]:
        loader = Loader(pack, order, DEVICE, size=crop)
        if decoder == "gpu":
            loader.device_crops = DeviceCropReader(pack, crop, DEVICE)
        speed = images_per_s(batch.images for batch in loader.batches(cuts, Draw(0, 0)))
        loader.close()
        yield Row(f"loader alone, decoder {decoder}", speed)
    if importlib.util.find_spec("torchvision"):
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        steps = [transforms.RandomResizedCrop(setting.side), transforms.RandomHorizontalFlip()]
        files = ImageFolder(
            str(root / "train"), transforms.Compose([*steps, transforms.PILToTensor()])
        )
        batches = torch.utils.data.DataLoader(
            files, setting.batch, shuffle=True, num_workers=core_count()
        )
        yield Row("torchvision's DataLoader", images_per_s(images for images, _ in batches))


def measured_cpu(pack: Pack, setting: Setting) -> Iterator[Row]:
    """Measure only the CPU's decoder beside the bare eager loop, twice in turn."""
    for _ in range(2):
        speed = bare(setting, compiled=False)
        yield Row("bare loop, eager", speed)
        row = ours(pack, setting, "decoder cpu, eager", decoder="cpu", graph="off")
        yield replace(row, of_eager=row.images_per_s / speed)


def measured(pack: Pack, root: Path, setting: Setting, everything: bool) -> Iterator[Row]:
    """Measure the bare loops, ours with their ratios to these, and the loaders alone."""
    speeds = {}
    for name, compiled in {"eager": False, **({"compiled": True} if ON_GPU else {})}.items():
        speeds[name] = bare(setting, compiled)
        yield Row(f"bare loop, {name}", speeds[name])
    for row in trained(pack, setting, everything):
        of_compiled = row.images_per_s / speeds["compiled"] if ON_GPU else None
        of_eager = row.images_per_s / speeds["eager"]
        yield replace(row, of_eager=of_eager, of_compiled=of_compiled)
    yield from loaders(pack, root, setting)


def made(folder: Path, given: argparse.Namespace) -> Pack:
    """Make the images and the pack of them in `folder`, unless they are there."""
    root, out = folder / "images", folder / "pack"
    if not out.exists():
        # Several images of each class, since one of twenty is held out.
        write(root, given.images, min(CLASSES, max(2, given.images // 40)), given.quality)
        copied(root, given.copies)
        pack = [sys.executable, "-m", "thresher", "data", "pack", str(root), str(out)]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    return Pack.open(out)


def copied(root: Path, copies: int) -> None:
    """Give each training image `copies` names."""
    for file in list((root / "train").rglob("*.jpg")):
        for n in range(1, copies):
            os.link(file, file.with_name(f"{file.stem}-{n}.jpg"))


def lines_of(rows: list[Row]) -> list[str]:
    """Return the rows as a Markdown table."""
    cells = []
    for row in rows:
        shares = (row.input_wait_share, row.of_eager, row.of_compiled)
        texts = ["" if share is None else f"{share:.2f}" for share in shares]
        cells.append((row.case, f"{row.images_per_s:,.0f}", *texts))
    return table(("case", "images/s", "waiting", "of bare eager", "of bare compiled"), cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000 if ON_GPU else 64)
    parser.add_argument("--copies", type=int, default=10 if ON_GPU else 1)
    parser.add_argument("--quality", type=int, default=87, help="of the JPEGs")
    parser.add_argument("--model", default="resnet50" if ON_GPU else "resnet20")
    parser.add_argument("--image-size", type=int, default=224 if ON_GPU else 32)
    parser.add_argument("--batch", type=int, default=256 if ON_GPU else 8)
    parser.add_argument("--all", action="store_true", help="every decoder with every kind of step")
    parser.add_argument("--cpu", action="store_true", help="only the CPU's decoder, eager steps")
    parser.add_argument("--epochs", type=int, default=2, help="the first one is left out")
    parser.add_argument("--folder", type=Path, help="where images and pack are kept")
    parser.add_argument("--out", type=Path, help="write JSON here and a table beside it")
    given = parser.parse_args()
    setting = Setting(given.model, given.image_size, given.batch, max(2, given.epochs))
    with tempfile.TemporaryDirectory() as temporary:
        # Data made with other settings lie beside, and are not mistaken for these.
        kind = f"{given.images}x{given.copies}-quality-{given.quality}"
        folder = (given.folder or Path(temporary)) / kind
        pack = made(folder, given)
        samples = len(pack.indices("train"))
        about = {"setting": vars(setting), "quality": given.quality, "images": samples}
        title = f"Training {given.model} from {samples:,} JPEGs"
        rows: list[Row] = []
        measurements = (
            measured_cpu(pack, setting)
            if given.cpu
            else measured(pack, folder / "images", setting, given.all)
        )
        for row in measurements:
            rows.append(row)
            print(row, flush=True)
            if given.out:
                found = {**about, "rows": [vars(row) for row in rows]}
                write_json(given.out, {"machine": describe(), **found})
                write_text(given.out.with_suffix(".md"), page(title, lines_of(rows)))
    print("\n".join(lines_of(rows)))


if __name__ == "__main__":
    main()
