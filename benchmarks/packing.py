"""How fast are image files packed, compared with copying them?

    python -m benchmarks.packing --images 3000
    python -m benchmarks.packing --images 4000 --copies 15      a large folder, made quickly

`cp -r` and `sync` against `thresher data pack` and `sync`, of the same JPEGs, in turn, several
rounds. The system's cache of files is dropped before each, where that is allowed (root on Linux).
Data: `benchmarks.imagenet_like`, or `--folder`.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.imagenet_like import write
from benchmarks.machine import children_cpu, describe
from thresher.environment import core_count
from thresher.paths import write_json

PACKAGES = ("numpy", "pyarrow", "pillow", "simplejpeg", "thresher")


def copy_files(folder: Path, copies: int) -> None:
    """Copy each file, so that there are `copies` of it."""
    for file in [file for file in folder.rglob("*") if file.is_file()]:
        for n in range(1, copies):
            shutil.copyfile(file, file.with_name(f"{file.stem}-{n}{file.suffix}"))


def drop_caches() -> bool:
    """Write out and drop the system's cache of files; return whether that was allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def timed(command: list[str], out: Path) -> dict[str, float]:
    """Return seconds until what the command wrote is on disk, and the processor seconds used."""
    before, begin = children_cpu(), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    os.sync()
    seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    return {"seconds": seconds, "processor_seconds": children_cpu() - before}


def measure(folder: Path, rounds: int, processes: int) -> dict[str, Any]:
    """Copy and pack the files of a folder in turn, into a new folder beside it."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    times: dict[str, list[dict[str, float]]] = {"copy": [], "pack": []}
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        out = Path(temporary, "out")
        pack = [sys.executable, "-m", "thresher", "data", "pack", str(folder), str(out)]
        commands = {
            "copy": ["cp", "-r", str(folder), str(out)],
            "pack": [*pack, "--processes", str(processes)],
        }
        for _ in range(rounds):
            for name, command in commands.items():
                dropped = drop_caches()
                times[name].append(timed(command, out))
    pairs = zip(times["pack"], times["copy"], strict=True)
    best = min(run["seconds"] for run in times["pack"])
    return {
        "images": len(files),
        "bytes": size,
        "processes": processes,
        "caches_dropped": dropped,
        "rounds": times,
        "pack_over_copy": statistics.median(a["seconds"] / b["seconds"] for a, b in pairs),
        "packed_images_per_second": len(files) / best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--copies", type=int, default=1, help="of each image")
    parser.add_argument("--folder", type=Path, help="pack this folder of images instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=core_count())
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder
        if folder is None:
            folder = Path(temporary, "images")
            write(folder, options.images, 100, quality=68)
            copy_files(folder, options.copies)
        result = measure(folder.resolve(), options.rounds, options.processes)
    for name, runs in result["rounds"].items():
        shown = ", ".join(f"{run['seconds']:.1f}" for run in runs)
        used = statistics.median(run["processor_seconds"] for run in runs)
        print(f"{name}: {shown} s; {used:.1f} processor seconds")
    if not result["caches_dropped"]:
        print("the cache of files could not be dropped: the files were read from memory")
    print(
        f"packing takes {result['pack_over_copy']:.2f} times as long as copying, "
        f"{result['packed_images_per_second']:,.0f} images/s in the best round"
    )
    if options.out:
        write_json(options.out, {**result, "machine": describe(PACKAGES)})


if __name__ == "__main__":
    main()
