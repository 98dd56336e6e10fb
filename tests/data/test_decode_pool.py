"""Crops that processes decode: the same as in this process, and no process is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_images import class_folder
from thresher.data import decode_pool
from thresher.data import loader as loader_module
from thresher.data.crop_reader import Draw
from thresher.data.crops import ResizedCrop
from thresher.data.decode_pool import DecodePool
from thresher.data.loader import Loader
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.errors import InvalidValueError, ThresherError

DRAW = Draw(epoch=2, seed=1)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    root = tmp_path_factory.mktemp("pool")
    return write_pack(Folder(class_folder(root / "images", each=10)), root / "pack")


@pytest.fixture(autouse=True)
def _processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_PROCESSES_FROM", 1)


def _pool(loader: Loader) -> DecodePool:
    assert loader._pool is not None
    return loader._pool


@pytest.mark.parametrize("size", [ResizedCrop(12), 12])
def test_processes_and_threads_give_the_same_images(
    encoded: Pack, size: int | ResizedCrop, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = np.random.default_rng(0).permutation(len(encoded))
    # The third batch is larger than the first, the last one smaller than there are processes.
    cuts = np.split(positions, [4, 8, 15, 19, len(positions) - 1])
    monkeypatch.setattr(loader_module, "READ_AHEAD", 3 * 4 * 12 * 12 * 3)
    loader = Loader(encoded, resident=False, size=size, threads=2)
    ours = {draw: list(loader.batches(cuts, draw)) for draw in (DRAW, None)}
    assert _pool(loader).slots == 3
    # A second iteration while the first one is under way.
    beside = zip(loader.batches(cuts, DRAW), loader.batches(cuts, DRAW), strict=True)
    assert all(torch.equal(one.images, two.images) for one, two in beside)
    loader.close()
    monkeypatch.setattr(loader_module, "_PROCESSES_FROM", 1000)
    threads = Loader(encoded, resident=False, size=size, threads=2)
    for draw, batches in ours.items():
        for one, two in zip(batches, threads.batches(cuts, draw), strict=True):
            assert torch.equal(one.images, two.images)
            assert torch.equal(one.keys, two.keys)


def test_an_iteration_that_ends_early_leaves_nothing_pending(encoded: Pack) -> None:
    loader = Loader(encoded, size=ResizedCrop(12), threads=2)
    cuts = np.array_split(np.arange(len(encoded)), 10)
    expected = [batch.images for batch in loader.batches(cuts, DRAW)]
    processes = _pool(loader)._processes
    stopped = loader.batches(cuts, Draw(epoch=9, seed=9))
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    again = [batch.images for batch in loader.batches(cuts, DRAW)]
    assert all(torch.equal(one, two) for one, two in zip(expected, again, strict=True))
    assert _pool(loader)._processes is processes  # they are started once
    del loader  # ends them
    assert all(process.returncode == 0 for process in processes)


@pytest.mark.gpu
def test_an_iteration_waits_for_the_copies_of_the_one_before(
    encoded: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream of the copies is busy, so that the first batch is copied half a second late."""
    make = torch.cuda.Stream

    def busy(*place: Any, **options: Any) -> torch.cuda.Stream:
        stream = make(*place, **options)
        if "stream_id" not in options:  # a new one, and not the current one
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1 << 30)
        return stream

    loader = Loader(encoded, device="cuda", size=ResizedCrop(12), threads=2)
    one, other = np.arange(10), np.arange(10, 20)
    (expected,) = [batch.images.cpu() for batch in loader.batches([one], DRAW)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", busy)
        (late,) = list(loader.batches([one], DRAW))
    list(loader.batches([other], DRAW))  # into the same memory
    assert torch.equal(late.images.cpu(), expected)
    loader.close()


def test_a_damaged_image_is_named(encoded: Pack, tmp_path: Path) -> None:
    file = encoded.encoded(3)
    for shard in encoded.meta.shards:
        content = (encoded.root / shard.file).read_bytes()
        (tmp_path / shard.file).write_bytes(content.replace(file, bytes(len(file))))
    damaged = Pack(tmp_path, encoded.meta)
    loader = Loader(damaged, size=ResizedCrop(12), threads=2)
    name = encoded.ids[3].as_py()
    with pytest.raises(InvalidValueError, match=f"the image {name} of .* cannot be decoded"):
        list(loader.batches([np.arange(5)], DRAW))
    rest = np.delete(np.arange(len(encoded)), 3)
    assert sum(len(batch.images) for batch in loader.batches([rest], DRAW)) == len(rest)
    loader.close()


def test_a_killed_process_ends_the_iteration(encoded: Pack) -> None:
    loader = Loader(encoded, size=ResizedCrop(12), threads=2)
    batches = loader.batches(np.array_split(np.arange(len(encoded)), 20), DRAW)
    next(batches)
    os.kill(_pool(loader)._processes[1].pid, signal.SIGKILL)
    with pytest.raises(ThresherError, match="a process that decodes images was killed"):
        list(batches)
    loader.close()


@pytest.mark.slow  # starts interpreters
@pytest.mark.fresh
def test_signals_to_a_process_that_starts_do_not_end_it(
    encoded: Pack, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start = decode_pool._start

    def start_and_signal(*arguments: Any) -> "subprocess.Popen[bytes]":
        process = start(*arguments)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
        return process

    monkeypatch.setattr(decode_pool, "_start", start_and_signal)
    loader = Loader(encoded, resident=False, size=12, threads=2)
    (batch,) = loader.batches([np.arange(4)])
    assert batch.images.shape == (4, 12, 12, 3)
    loader.close()
    assert capfd.readouterr().err == ""


_READS = """
import sys, time
from thresher.data import loader as module
from thresher.data.crops import ResizedCrop
from thresher.data.pack import Pack
module._PROCESSES_FROM = 1
loader = module.Loader(Pack.open(sys.argv[1]), size=ResizedCrop(12), threads=2)
next(loader.batches([range(4), range(4)]))
print(*(process.pid for process in loader._pool._processes), flush=True)
time.sleep(60)
"""


@pytest.mark.slow  # starts an interpreter
@pytest.mark.fresh
def test_the_processes_end_when_their_parent_is_killed(encoded: Pack) -> None:
    """They ignore the signals that end a training, but not its end."""
    words = [sys.executable, "-c", _READS, str(encoded.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        for pid in pids:
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "libtorch" not in maps  # which takes seconds to load
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
        time.sleep(0.1)
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        parent.kill()
    end = time.monotonic() + 4
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)
