"""Memory of our own while 4 GB are packed and then streamed in random order; files not counted.

    python -m benchmarks.streaming_memory [--gigabytes 4]

Writes benchmarks/results/streaming_memory.json.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.machine import describe, publish_json
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import write_pack

SIDE, BATCH, CHUNK = 224, 256, 2048
LIMIT = 1 << 30


class Noise:
    """Random images of 224×224, in chunks of about 300 MB; every process can make each chunk."""

    def __init__(self, samples: int) -> None:
        self.name, self.classes = "noise", ["a", "b"]
        self.image_shape: tuple[int, int, int] | None = (SIDE, SIDE, 3)
        self.samples = samples

    def key(self) -> str:
        return f"noise {self.samples}"

    def chunks(self) -> list[str]:
        return [str(begin) for begin in range(0, self.samples, CHUNK)]

    def read(self, chunk: str) -> Iterator[Block]:
        random = np.random.default_rng(int(chunk))
        end = min(int(chunk) + CHUNK, self.samples)
        for begin in range(int(chunk), end, 64):
            numbers = range(begin, min(begin + 64, end))
            pixels = np.frombuffer(random.bytes(len(numbers) * SIDE * SIDE * 3), np.uint8)
            images = pixels.reshape(len(numbers), SIDE, SIDE, 3)
            ids = [str(n) for n in numbers]
            yield Block(ids, [n % 2 for n in numbers], ["train"] * len(ids), images)


class Watch:
    """Anonymous memory of this process and its children, in bytes, as (time, bytes)."""

    def __init__(self, every: float = 0.05) -> None:
        self.seen: list[tuple[float, int]] = []
        self._every, self._stop = every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()  # a short block may end before the first look

    @property
    def peak(self) -> int:
        return max(size for _, size in self.seen)

    def look(self) -> None:
        size = sum(map(anonymous, [os.getpid(), *children()]))
        self.seen.append((time.perf_counter(), size))

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.look()


def children() -> list[int]:
    """Return the processes that any thread of this one has started."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in (thread / "children").read_text().split()]
    return found


def anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(lines[0].split()[1]) << 10 if lines else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4.0)
    samples = int(parser.parse_args().gigabytes * (1 << 30) / (SIDE * SIDE * 3))
    results: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        with Watch() as packing:
            write_pack(Noise(samples), Path(folder) / "pack")
        results["packing"] = packing.peak
        pack = Pack.open(Path(folder) / "pack")
        order = np.random.default_rng(0).permutation(len(pack))
        cuts = np.array_split(order, -(-len(order) // BATCH))
        with Watch() as streaming:
            loader = Loader(pack, resident=False)
            seen = sum(len(batch.images) for batch in loader.batches(cuts))
        results["streaming"] = streaming.peak
    assert seen == samples
    total = samples * SIDE * SIDE * 3
    report = {
        "data_bytes": total,
        "batch": BATCH,
        **{
            name: {
                "peak_own_memory_mb": round(peak / 1e6),
                "under_1_gb": peak < LIMIT,
            }
            for name, peak in results.items()
        },
        "machine": describe(),
    }
    publish_json(report, Path(__file__).parent / "results" / "streaming_memory.json")
    if not all(peak < LIMIT for peak in results.values()):
        raise SystemExit("more than 1 GB of memory")


if __name__ == "__main__":
    main()
