"""`thresher data …` as a user types it."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from made_images import class_folder

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def refused(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("thresher:")]
    assert len(lines) == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


def test_info_of_a_data_set_that_ships(thresher: Run, tmp_path: Path) -> None:
    done = thresher("data", "info", "digits", "--json", env={"THRESHER_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wanted = ("name", "splits", "classes", "image_shape", "mean", "std", "fingerprint", "bytes")
    assert set(wanted) <= set(found)
    assert found["splits"] == {"train": 1437, "test": 360}


@pytest.mark.slow  # four commands
def test_a_missing_data_set_says_the_command(thresher: Run, tmp_path: Path) -> None:
    env = {"THRESHER_HOME": str(tmp_path)}
    done = thresher("data", "info", "cifar100", env=env)
    refused(done, "not in the cache", "`thresher data get cifar100`")
    refused(thresher("data", "info", "cifar1O", env=env), 'did you mean "cifar10"?')
    refused(thresher("data", "get", "mnist", env=env), 'unknown data set "mnist"')
    refused(thresher("data", "get", "cifar10", "--from", tmp_path / "x", env=env), "does not exist")


def test_a_missing_data_set_is_offered_on_a_terminal(tmp_path: Path) -> None:
    terminal, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", "data", "info", "fashion-mnist"],
        env={**os.environ, "THRESHER_HOME": str(tmp_path)},
        stdin=other,
        stdout=subprocess.DEVNULL,
        stderr=other,
    )
    os.close(other)
    said, end = b"", time.monotonic() + 60
    while b"[Y/n]" not in said and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096)
    assert b'"fashion-mnist" is not in the cache' in said
    os.write(terminal, b"n\n")
    assert process.wait(60) == 2
    os.close(terminal)
    assert not (tmp_path / "packs" / "fashion-mnist").exists()


def test_pack_verify_and_a_flipped_byte(thresher: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images")
    (folder / "train/cat/0.jpg").write_bytes(b"broken")
    out = tmp_path / "pack"
    done = thresher("data", "pack", folder, out, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["broken_ids"] == ["train/cat/0.jpg"]
    assert found["samples"] == 35
    done = thresher("data", "verify", out)
    assert done.returncode == 0
    assert "every byte as written" in done.stdout
    (shard,) = out.glob("*.arrow")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0x10
    shard.write_bytes(data)
    refused(thresher("data", "verify", out, "--json"), "1 of 1 shards", shard.name)


@pytest.mark.slow  # six commands
def test_pack_refuses_in_one_sentence(thresher: Run, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "images")
    (folder / "val/dog/2.jpg").write_bytes(b"broken")
    out = tmp_path / "pack"
    refused(thresher("data", "pack", folder, out, "--strict"), "val/dog/2.jpg cannot be read")
    assert not out.exists()
    refused(thresher("data", "pack", tmp_path / "gone", out), "does not exist")
    refused(thresher("data", "pack", folder, out, "--format", "zip"), 'unknown format "zip"')
    refused(
        thresher("data", "pack", folder, out, "--resize", "0"),
        "--resize must be in [1, 4096], got 0",
    )
    out.write_text("a file")
    refused(thresher("data", "pack", folder, out), "exists already")
    refused(thresher("data", "info", out), "is not a pack")


@pytest.mark.slow  # four commands and a packer
def test_export_and_back(thresher: Run, digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "tars"
    done = thresher("data", "export", "digits", out, "--format", "webdataset", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["samples"] == 1797
    done = thresher("data", "pack", out, tmp_path / "pack", "--json")
    assert done.returncode == 0, done.stderr
    there = json.loads(thresher("data", "info", digits, "--json").stdout)
    assert json.loads(done.stdout)["fingerprint"] == there["fingerprint"]
    refused(thresher("data", "export", "digits", tmp_path / "x", "--format", "rar"), '"rar"')


@pytest.mark.slow  # writes eight containers
def test_bench_measures_every_container(thresher: Run, digits: Path, tmp_path: Path) -> None:
    figure = tmp_path / "bench.svg"
    arguments = ["--images", 300, "--seconds", 0.02, "--rounds", 1, "--out", figure, "--json"]
    done = thresher("data", "bench", digits, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["skipped"] == {}
    rows = {(row["container"], row["access"]): row for row in found["results"]}
    assert {container for container, _ in rows} == {
        *("memory copy", "memory (numpy)", "pack", "folder"),
        *("webdataset", "tfrecord", "lmdb", "hdf5"),
    }
    assert rows["memory copy", "sequential"]["ratio_to_memory_copy"] == 1.0
    for row in rows.values():
        assert row["images_per_s"] > 0
        assert row["ratio_to_memory_copy"] > 0
    # Files decoded one by one are far behind, by more than any noise.
    assert rows["pack", "random"]["images_per_s"] > 5 * rows["folder", "random"]["images_per_s"]
    assert "<svg" in figure.read_text()
    assert list(tmp_path.iterdir()) == [figure]


@pytest.mark.parametrize("flag", ["--images", "--batch", "--rounds"])
def test_bench_refuses_nothing_to_measure(thresher: Run, digits: Path, flag: str) -> None:
    refused(thresher("data", "bench", digits, flag, 0), "must be at least 1")


def test_bench_checks_where_it_writes_before_it_measures(
    thresher: Run, digits: Path, tmp_path: Path
) -> None:
    done = thresher("data", "bench", digits, "--seconds", 3000, "--out", tmp_path / "x.txt")
    refused(done, "x.txt must end in .svg, .png, .pdf")
    done = thresher("data", "bench", digits, "--folder", tmp_path / "gone")
    refused(done, "gone", "does not exist")


def test_an_ended_bench_leaves_no_containers(digits: Path, tmp_path: Path) -> None:
    """SIGTERM, as from SLURM; they may take gigabytes."""
    command = ["data", "bench", str(digits), "--seconds", "300", "--folder", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", *command], stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not list(tmp_path.glob(".thresher-bench.*/*")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.terminate()
    assert "interrupted" in process.communicate(timeout=60)[1]
    assert process.returncode == 143
    assert not list(tmp_path.iterdir())
