"""Memory of our own while packing and streaming data larger than it: 4 GB by default.

    python -m benchmarks.data_memory [--gb 4] [--out benchmarks/results]

Counted is anonymous memory (RssAnon) of the process and its workers together, sampled every 20 ms;
the pages of mapped files belong to the system's cache and are not counted. Linux only.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from benchmarks.memory_watch import Watch
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.paths import write_json

SHAPE = (224, 224, 3)
ROWS, ROWS_PER_BLOCK = 1_000, 100


class Noise:
    """Seeded random images, a thousand per chunk."""

    name = "noise"
    classes: list[str] = ["only"]  # noqa: RUF012 (a protocol attribute)
    image_shape: tuple[int, int, int] | None = SHAPE

    def __init__(self, chunks: int) -> None:
        self.count = chunks

    def key(self) -> str:
        return f"noise {self.count}"

    def chunks(self) -> list[str]:
        return [str(n) for n in range(self.count)]

    def read(self, chunk: str) -> Iterator[Block]:
        random = np.random.default_rng(int(chunk))
        for begin in range(0, ROWS, ROWS_PER_BLOCK):
            yield Block(
                [f"{chunk}/{begin + n}" for n in range(ROWS_PER_BLOCK)],
                [0] * ROWS_PER_BLOCK,
                ["train"] * ROWS_PER_BLOCK,
                random.integers(0, 256, (ROWS_PER_BLOCK, *SHAPE), dtype=np.uint8),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="folder for data_memory.json")
    arguments = parser.parse_args()
    chunks = max(1, round(arguments.gb * 1e9 / (ROWS * int(np.prod(SHAPE)))))
    with tempfile.TemporaryDirectory(prefix="thresher-memory-") as folder:
        out = Path(folder) / "noise"
        begun = time.perf_counter()
        with Watch(0.02) as packing:
            write_pack(Noise(chunks), out, WriteOptions(processes=arguments.processes))
        packed = time.perf_counter() - begun
        pack = Pack.open(out)
        begun = time.perf_counter()
        with Watch(0.02) as streaming:
            read = _stream(pack)
        streamed = time.perf_counter() - begun
        size = pack.info().bytes
    found = {
        "bytes": size,
        "packing_peak_bytes": packing.peak,
        "packing_seconds": round(packed, 1),
        "packing_processes": arguments.processes,
        "streaming_peak_bytes": streaming.peak,
        "streaming_seconds": round(streamed, 1),
        "streamed_bytes": read,
        "holds": max(packing.peak, streaming.peak) < 1e9,
    }
    print(json.dumps(found))
    if arguments.out:
        write_json(arguments.out / "data_memory.json", {"machine": describe(), **found})


def _stream(pack: Pack) -> int:
    """One shuffled epoch in batches of 256 through the loader that training uses."""
    from thresher.data.loader import Loader
    from thresher.data.order import epoch_order

    order = epoch_order(len(pack), 0, 0)
    batches = [order[at : at + 256] for at in range(0, len(order), 256)]
    loader = Loader(pack, resident=False)
    return sum(batch.images.numel() for batch in loader.batches(batches))


if __name__ == "__main__":
    main()
