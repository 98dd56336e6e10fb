"""Time and memory of the filters and the page with as many images and classes as ImageNet has.

    python -m benchmarks.imagenet_filters --out benchmarks/results/imagenet_filters.json
    python -m benchmarks.imagenet_filters --filters embed network

Features (2,048 numbers for each image, float16) and training dynamics are made up: each class is a
cloud with a few wrong labels and copies. Every row is a command in a process of its own. Memory is
what the process itself holds (not the pages of mapped files, which the system drops if it needs
them) and what the GPU has in use beyond the state before. `embed` is an untrained ResNet-50 on
images of 32×32 pixels: its memory is that of larger images but for the batch, its time is not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from benchmarks.cold_start import write_index
from benchmarks.machine import describe, page, table
from benchmarks.memory_watch import anonymous
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import write_pack
from thresher.models import registry
from thresher.models.features import FeaturePaths
from thresher.paths import RUN_FORMAT, RunPaths, write_json, write_text

IMAGES, CLASSES, DIMENSION = 1_281_167, 1000, 2048
WRONG, COPIES = 0.03, 0.005
HOST_LIMIT_GB, GPU_LIMIT_GB = 8.0, 24.0
_ROWS = 16384
_SHARD = 131072


@dataclass
class Made:
    """Small images of noise, with the labels of `labels_of`."""

    images: int
    count: int
    name: str = "imagenet-like"
    image_shape: tuple[int, int, int] | None = (8, 8, 3)
    classes: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = [f"n{label:04}" for label in range(self.count)]

    def key(self) -> str:
        return f"{self.name} {self.images} {self.count}"

    def chunks(self) -> list[str]:
        return [str(begin) for begin in range(0, self.images, _SHARD)]

    def read(self, chunk: str) -> Iterator[Block]:
        begin = int(chunk)
        rows = range(begin, min(begin + _SHARD, self.images))
        random = np.random.default_rng(begin)
        images = random.integers(0, 256, (len(rows), 8, 8, 3), dtype=np.uint8)
        ids = [f"train/{row:07}.jpg" for row in rows]
        yield Block(ids, labels_of(self.images, self.count)[rows], ["train"] * len(rows), images)


def labels_of(images: int, classes: int) -> np.ndarray:
    """Return the given labels (n,), of which a share is wrong."""
    random = np.random.default_rng(1)
    wrong = random.random(images) < WRONG
    shift = np.where(wrong, random.integers(1, classes, images), 0)
    return (np.arange(images) + shift) % classes


def write_features(folder: Path, pack: Pack, dimension: int) -> None:
    """Write features as `thresher embed` does: clouds around the true class, and some copies."""
    n, classes = len(pack), len(pack.classes)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random = torch.Generator(device).manual_seed(0)
    centres = torch.randn(classes, dimension, generator=random, device=device)
    paths = FeaturePaths(folder)
    folder.mkdir(parents=True)
    array = np.lib.format.open_memmap(paths.array, "w+", np.float16, (n, dimension))
    for begin in range(0, n, _ROWS):
        true = torch.arange(begin, min(begin + _ROWS, n), device=device) % classes
        noise = torch.randn(len(true), dimension, generator=random, device=device)
        rows = (centres[true] + 1.5 * noise).relu().half().cpu().numpy()
        copies = np.flatnonzero(np.random.default_rng(begin).random(len(rows)) < COPIES)
        copies = copies[copies >= classes]
        rows[copies] = rows[copies - classes]
        array[begin : begin + len(rows)] = rows
    array.flush()
    write_index(paths, pack, array)


def write_run(folder: Path, pack: Pack) -> None:
    """Write the training dynamics of a run."""
    paths = RunPaths(folder)
    folder.mkdir(parents=True)
    write_json(paths.config, {"format": RUN_FORMAT, "data": {"fingerprint": pack.fingerprint}})
    random = np.random.default_rng(2)
    names = ("el2n", "forgetting", "learned_epoch", "loss", "margin", "uncertainty")
    columns = {name: random.random(len(pack), np.float32) for name in names}
    pq.write_table(pa.table({"id": pack.ids, "label": pack.labels, **columns}), paths.dynamics)


@dataclass(frozen=True)
class Row:
    """What a command took."""

    what: str
    seconds: float
    host_gb: float
    gpu_gb: float
    dropped: int | None = None


class Watch:
    """The most memory that a process held while the block ran."""

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self._done = threading.Event()

    @contextmanager
    def on(self, process: "subprocess.Popen[str]") -> Iterator[None]:
        threads = [threading.Thread(target=self._look_at_host, args=(process.pid,))]
        if torch.cuda.is_available():
            threads.append(threading.Thread(target=self._look_at_gpu))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join()

    def _look_at_host(self, pid: int) -> None:
        while not self._done.wait(0.05):
            self.host = max(self.host, anonymous(pid) / 1e9)

    def _look_at_gpu(self) -> None:
        before = torch.cuda.mem_get_info()[0]
        while not self._done.wait(0.05):
            self.gpu = max(self.gpu, (before - torch.cuda.mem_get_info()[0]) / 1e9)


def watched(
    what: str, words: list[str], use: "Callable[[subprocess.Popen[str]], int | None]"
) -> Row:
    """Run `thresher` with these words until `use` returns; print and return what it took."""
    watch, begun = Watch(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", *words, "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        with watch.on(process):
            dropped = use(process)
            seconds = time.perf_counter() - begun
    finally:
        process.terminate()
        process.wait()
    row = Row(what, round(seconds, 2), round(watch.host, 2), round(watch.gpu, 2), dropped)
    print(json.dumps(asdict(row)), flush=True)
    return row


def embed(pack: Pack, out: Path) -> Row:
    def ended(process: "subprocess.Popen[str]") -> None:
        process.communicate()
        if process.returncode:
            raise SystemExit("embed failed")

    weights = out / "resnet50.safetensors"
    save_file(registry.build("resnet50", len(pack.classes)).state_dict(), weights)
    words = ["--model", "resnet50", "--weights", str(weights), "--image-size", "32"]
    words += ["--data", str(pack.root), "--out", str(out / "embedded")]
    return watched("embed", ["embed", *words], ended)


def select(name: str, source: list[str], out: Path, *more: str) -> Row:
    def ended(process: "subprocess.Popen[str]") -> int | None:
        answer = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"select {name} failed")
        return int(json.loads(answer)["dropped"])

    words = ["select", name, *source, *more, "--out", str(out / f"{name}.parquet")]
    return watched(f"select {name}", words, ended)


def view(selection: Path, data: Path) -> Row:
    def loaded(process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            text += process.stdout.readline()
        url = json.loads(text)["url"]
        for address in (url, url.replace("?", "api/points?")):
            with urllib.request.urlopen(address, timeout=120) as answer:
                answer.read()

    words = ["view", str(selection), "--data", str(data), "--no-browser"]
    return watched("view, until the map has arrived", words, loaded)


def report(rows: list[Row], images: int, classes: int, dimension: int) -> str:
    what = (
        f"{images:,} images of {classes:,} classes, {dimension:,} features each. Memory in GB; the "
        f"limits are {HOST_LIMIT_GB:g} GB of the host and {GPU_LIMIT_GB:g} GB of the GPU."
    )
    cells = []
    for row in rows:
        numbers = [f"{number:.1f}" for number in (row.seconds, row.host_gb, row.gpu_gb)]
        cells.append((row.what, *numbers, "" if row.dropped is None else f"{row.dropped:,}"))
    lines = table(("command", "seconds", "host", "GPU", "dropped"), cells)
    return page("Filters and page at ImageNet's size", [what, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--dimension", type=int, default=DIMENSION)
    parser.add_argument("--filters", nargs="*", help="only these (embed, too), without the page")
    parser.add_argument("--out", type=Path, help="write JSON here and a table beside it")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        begun = time.perf_counter()
        pack = write_pack(Made(options.images, options.classes), root / "pack")
        write_features(root / "features", pack, options.dimension)
        write_run(root / "run", pack)
        print(f"made in {time.perf_counter() - begun:.0f} s", flush=True)
        data = ["--data", str(pack.root)]
        features, run = (
            [*data, "--features", str(root / "features")],
            [*data, "--run", str(root / "run")],
        )
        sources = {
            **dict.fromkeys(("network", "label-errors", "near-duplicates", "outliers"), features),
            **dict.fromkeys(("moderate", "knn"), features),
            **dict.fromkeys(("el2n", "forgetting", "aum"), run),
        }
        for name in options.filters or ["embed", *sources]:
            row = embed(pack, root) if name == "embed" else select(name, sources[name], root)
            rows.append(row)
        if not options.filters:
            rows.append(view(root / "network.parquet", pack.root))
    if options.out:
        content = {"machine": describe(), "images": options.images, "classes": options.classes}
        write_json(options.out, {**content, "rows": [asdict(row) for row in rows]})
        shape = (options.images, options.classes, options.dimension)
        write_text(options.out.with_suffix(".md"), report(rows, *shape))


if __name__ == "__main__":
    main()
