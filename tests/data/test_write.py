"""Writing packs: the same result however it is interrupted, in bounded memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from made_images import Made, class_folder, picture
from thresher.data import shard
from thresher.data.digest import fingerprint, sample_digest
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError

ONE, TWO = WriteOptions(processes=1), WriteOptions(processes=2)
PACKER = """
import sys
from pathlib import Path
from made_images import Made
from thresher.cli.main import main
from thresher.data import shard
from thresher.data.write import WriteOptions, write_pack
if __name__ == "__main__":
    rows, chunks, side, pause, blocks = (float(v) for v in sys.argv[2:7])
    shard.MERGE_BYTES = 0
    source = Made(int(rows), int(chunks), (int(side), int(side), 3), pause, int(blocks))
    try:
        write_pack(source, Path(sys.argv[1]), WriteOptions(processes=2))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def start_packing(
    tmp_path: Path, rows: int, chunks: int, side: int, pause: float, blocks: int = 2
) -> subprocess.Popen[str]:
    script = tmp_path / "packer.py"
    script.write_text(PACKER)
    path = f"{Path(__file__).parents[1]}{os.pathsep}{os.environ['PYTHONPATH']}"
    numbers = [str(v) for v in (rows, chunks, side, pause, blocks)]
    return subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pack"), *numbers],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def spawned(pid: int) -> list[int]:
    """Return the workers of a packer."""
    files = {child: Path(f"/proc/{child}/cmdline") for child in children(pid)}
    return [child for child, file in files.items() if b"spawn_main" in file.read_bytes()]


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.slow
def test_processes_and_blocks_do_not_change_the_pack(tmp_path: Path) -> None:
    packs = [
        write_pack(Made(), tmp_path / "one", ONE),
        write_pack(Made(), tmp_path / "two", TWO),
    ]
    assert packs[0].fingerprint == packs[1].fingerprint
    assert packs[0].meta.shards == packs[1].meta.shards


def test_fingerprint_tells_ids_labels_and_pixels_and_nothing_else() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        n = int(random.integers(1, 40))
        images = random.integers(0, 256, (n, 3, 2, 1), dtype=np.uint8)
        ids = [f"s{k}" for k in random.permutation(n)]
        labels = random.integers(0, 5, n)

        def of(order: np.ndarray, ids: list[str], labels: np.ndarray, images: np.ndarray) -> str:
            rows = [sample_digest(ids[k], int(labels[k]), images[k]) for k in order]
            return fingerprint(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 16))

        whole = of(np.arange(n), ids, labels, images)
        assert of(random.permutation(n), ids, labels, images) == whole
        k = int(random.integers(n))
        other_pixel, other_label, other_id = images.copy(), labels.copy(), list(ids)
        other_pixel[k, 1, 1, 0] ^= 1
        other_label[k] += 1
        other_id[k] += "x"
        turned = images.transpose(0, 2, 1, 3)
        assert of(np.arange(n), ids, labels, other_pixel) != whole
        assert of(np.arange(n), ids, other_label, images) != whole
        assert of(np.arange(n), other_id, labels, images) != whole
        assert of(np.arange(n), ids, labels, turned) != whole
        assert of(np.arange(n - 1), ids, labels, images) != whole


@pytest.mark.slow  # waits for a packer that pauses
def test_killed_while_packing_it_is_no_pack_and_goes_on(tmp_path: Path) -> None:
    staging, out = tmp_path / ".pack.partial", tmp_path / "pack"
    packer = start_packing(tmp_path, rows=20, chunks=8, side=8, pause=0.3)
    try:
        wait_for(lambda: len(list(staging.glob("[0-9].json"))) >= 2)
        workers = children(packer.pid)
        assert workers
    finally:
        os.kill(packer.pid, signal.SIGKILL)
        packer.wait()
    assert not out.exists()
    for folder in (out, staging):
        with pytest.raises(ThresherError):
            Pack.open(folder)
    wait_for(lambda: not any(alive(worker) for worker in workers))
    finished = {
        file: (staging / f"{int(file.stem):05d}.arrow").stat().st_mtime_ns
        for file in staging.glob("[0-9].json")
    }
    assert 2 <= len(finished) < 8
    (staging / ".00007.arrow.1-abc.tmp").write_bytes(b"half")
    merge_bytes, shard.MERGE_BYTES = shard.MERGE_BYTES, 0
    try:
        pack = write_pack(Made(20, 8, (8, 8, 3)), out, ONE)
    finally:
        shard.MERGE_BYTES = merge_bytes
    for file, written in finished.items():
        assert (out / f"{int(file.stem):05d}.arrow").stat().st_mtime_ns == written, "done twice"
    assert pack.fingerprint == write_pack(Made(20, 8, (8, 8, 3)), tmp_path / "b", ONE).fingerprint
    assert not staging.exists()
    assert sorted(p.name for p in out.iterdir()) == [
        *(f"{n:05d}.arrow" for n in range(8)),
        "pack.json",
    ]


@pytest.mark.slow  # waits for a packer that pauses
def test_another_source_does_not_go_on_with_what_lies_there(tmp_path: Path) -> None:
    staging = tmp_path / ".pack.partial"
    packer = start_packing(tmp_path, rows=20, chunks=8, side=8, pause=0.3)
    wait_for(lambda: list(staging.glob("[0-9].json")))
    os.kill(packer.pid, signal.SIGKILL)
    packer.wait()
    pack = write_pack(Made(21, 3), tmp_path / "pack", ONE)
    assert len(pack) == 63
    assert pack.fingerprint == write_pack(Made(21, 3), tmp_path / "b", ONE).fingerprint


@pytest.mark.slow  # waits for a packer that pauses
def test_two_packers_of_one_pack(tmp_path: Path) -> None:
    packer = start_packing(tmp_path, rows=20, chunks=4, side=8, pause=0.7)
    wait_for(lambda: (tmp_path / ".pack.partial" / "plan.json").exists())
    with pytest.raises(ThresherError, match="another process is packing into"):
        write_pack(Made(), tmp_path / "pack", ONE)
    assert packer.wait(60) == 0
    assert len(Pack.open(tmp_path / "pack")) == 80
    with pytest.raises(ThresherError, match="exists already"):
        write_pack(Made(), tmp_path / "pack", ONE)


@pytest.mark.slow  # waits for a packer that pauses
@pytest.mark.parametrize("early", [True, False])
def test_control_c_ends_all_and_leaves_no_half_file(tmp_path: Path, early: bool) -> None:
    staging = tmp_path / ".pack.partial"
    packer = start_packing(tmp_path, rows=20, chunks=8, side=8, pause=0.5)
    wait_for(lambda: spawned(packer.pid) if early else list(staging.glob("[0-9].json")))
    workers = children(packer.pid)
    for pid in [packer.pid, *workers]:  # a terminal sends it to all of them
        os.kill(pid, signal.SIGINT)
    _, said = packer.communicate(timeout=60)
    assert packer.returncode == 130
    assert "Traceback" not in said
    assert not (tmp_path / "pack").exists()
    assert not list(staging.glob(".*"))
    wait_for(lambda: not any(alive(worker) for worker in workers))


@pytest.mark.slow  # waits for a packer that pauses
def test_a_worker_that_is_killed_is_reported(tmp_path: Path) -> None:
    packer = start_packing(tmp_path, rows=20, chunks=8, side=8, pause=0.5)
    wait_for(lambda: list((tmp_path / ".pack.partial").glob("[0-9].json")))
    os.kill(spawned(packer.pid)[0], signal.SIGKILL)
    _, said = packer.communicate(timeout=60)
    assert packer.returncode != 0
    assert "a worker process packing made was killed; run the same command again" in said


def anonymous_bytes(pid: int) -> int:
    """Memory of its own, the maps of files not counted."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


@pytest.mark.slow  # packs 600 MB
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """Parent and two workers together, while packing two shards of 300 MB each."""
    packer = start_packing(tmp_path, rows=2_000, chunks=2, side=224, pause=0, blocks=40)
    peak = 0
    while packer.poll() is None:
        tree = [packer.pid, *children(packer.pid)]
        peak = max(peak, sum(anonymous_bytes(pid) for pid in tree))
        time.sleep(0.02)
    assert packer.returncode == 0
    pack = Pack.open(tmp_path / "pack")
    size = pack.info().bytes
    assert size > 600e6
    assert 50e6 < peak < 0.8 * size, f"{peak / 1e6:.0f} MB of memory for {size / 1e6:.0f} MB"


def test_expecting_another_fingerprint_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match="not the published images of made"):
        write_pack(Made(), tmp_path / "pack", ONE, expect="0" * 32)
    assert list(tmp_path.iterdir()) == []


class Twins(Made):
    def read(self, chunk: str) -> Iterator[Block]:
        yield from super().read("0")


class Odd(Made):
    def read(self, chunk: str) -> Iterator[Block]:
        yield Block(["a"], [3], ["train"], np.zeros((1, 6, 5, 3), np.uint8))


class Misshapen(Made):
    def read(self, chunk: str) -> Iterator[Block]:
        yield Block(["a"], [0], ["train"], np.zeros((1, 5, 6, 3), np.uint8))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Twins(), '4 samples have the id "0/0"'),
        (Odd(), 'label of sample "a" of made must be in .0, 3., got 3'),
        (Misshapen(), "made gave uint8 images of 5×6×3 at a, not uint8 of 6×5×3"),
        (Made(chunks=0), "made has no images"),
    ],
)
def test_bad_sources_are_refused(tmp_path: Path, source: Made, message: str) -> None:
    with pytest.raises(ThresherError, match=message):
        write_pack(source, tmp_path / "pack", ONE)
    assert not (tmp_path / "pack").exists()


def test_broken_images_are_listed_or_fatal(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images")
    (folder / "train/cat/1.jpg").write_bytes(b"no image")
    whole = (folder / "train/dog/2.jpg").read_bytes()
    (folder / "train/dog/2.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "val/eel/gone.png").symlink_to("nowhere.png")
    with pytest.raises(ThresherError, match=r"train/cat/1.jpg cannot be read as an image"):
        write_pack(Folder(folder), tmp_path / "strict", WriteOptions(strict=True, processes=1))
    pack = write_pack(Folder(folder), tmp_path / "pack", ONE)
    assert pack.meta.broken == ["train/cat/1.jpg", "train/dog/2.jpg", "val/eel/gone.png"]
    assert len(pack) == 34
    assert (pack.positions(pack.meta.broken) == -1).all()


class Interrupted(Made):
    """Has a broken image in its first chunk, and is stopped in its second if told."""

    stop = True

    def read(self, chunk: str) -> Iterator[Block]:
        if chunk == "1" and self.stop:
            raise KeyboardInterrupt
        yield from super().read(chunk)
        if chunk == "0":
            yield Block([], [], [], np.empty((0, 6, 5, 3), np.uint8), broken=["gone.png"])


def test_strict_also_counts_what_an_interrupted_call_left_out(tmp_path: Path) -> None:
    source = Interrupted(rows=4, chunks=2)
    with pytest.raises(KeyboardInterrupt):
        write_pack(source, tmp_path / "pack", ONE)
    source.stop = False
    with pytest.raises(ThresherError, match=r"gone\.png cannot be read"):
        write_pack(source, tmp_path / "pack", WriteOptions(strict=True, processes=1))


def test_resizing_once_gives_raw_squares(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images")
    pack = write_pack(Folder(folder), tmp_path / "pack", WriteOptions(resize=12, processes=1))
    assert pack.image_shape == (12, 12, 3)
    encoded = write_pack(Folder(folder), tmp_path / "encoded", ONE)
    every = np.arange(len(pack))
    assert (pack.images(every) == encoded.images(every, size=12)).all()
    raw = write_pack(Made(), tmp_path / "raw", WriteOptions(resize=4, processes=1))
    assert raw.image_shape == (4, 4, 3)


def test_small_images_of_one_size_become_raw(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images", uneven=False)
    assert write_pack(Folder(folder), tmp_path / "pack", TWO).image_shape == (16, 20, 3)


def test_one_odd_size_among_many_keeps_the_files(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images", uneven=False, each=80)
    assert Folder(folder).image_shape == (16, 20, 3)
    (folder / "val/cat/1.jpg").write_bytes(picture(0, 21, 16))
    assert Folder(folder).image_shape == (16, 20, 3), "the odd one must be no probe"
    pack = write_pack(Folder(folder), tmp_path / "pack", TWO)
    assert pack.image_shape is None
    assert len(pack) == 480
