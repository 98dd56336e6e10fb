"""`thresher embed`: right features, the same on any workers, and nothing lost at a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from planted import ArraySource
from thresher.data.export import export
from thresher.data.ids import rows_by_id
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError
from thresher.models import weights
from thresher.models.embed import embed, features_of_run
from thresher.models.embed_config import EmbedOptions
from thresher.models.feature_source import find_features
from thresher.models.features import Features
from thresher.models.network import Network
from thresher.models.registry import build
from thresher.paths import write_json

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, digits: Path) -> Path:
    """A run's folder as `thresher train` leaves it, with an untrained network."""
    torch.manual_seed(0)
    weights.save(build("tiny", 10, 1), tmp_path / "run" / "model.safetensors")
    data = {"fingerprint": Pack.open(digits).fingerprint}
    config = {"config": {"model": "tiny", "crop": 0}, "data": data}
    write_json(tmp_path / "run" / "run.json", config)
    return tmp_path / "run"


def directly(pack: Pack, run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features and probabilities of the training split, written out plainly."""
    model = build("tiny", 10, 1, weights=run / "model.safetensors").eval()
    images = pack.images(pack.indices("train")) / 255
    x = torch.from_numpy((images - pack.mean) / pack.std).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        features, logits = find_features(model, x).run(model, x)
    return features.numpy(), logits.softmax(1).numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_are_the_networks(tmp_path: Path, digits: Path, run: Path, dtype: str) -> None:
    pack = Pack.open(digits)
    network = Network.from_run(run, pack)
    options = EmbedOptions(dtype=dtype, batch_size=100)  # type: ignore[arg-type]
    embed(network, pack, tmp_path / "f", options)
    features = Features.open(tmp_path / "f")
    wanted, likely = directly(pack, run)
    assert features.array.dtype == dtype
    assert np.allclose(features.array, wanted, atol=1e-5 if dtype == "float32" else 5e-3)
    assert features.probabilities is not None
    assert np.allclose(features.probabilities, likely, atol=1e-5)
    train = pack.indices("train")
    assert features.ids == pack.ids.take(train).to_pylist()
    assert features.labels is not None
    assert np.array_equal(features.labels, pack.labels[train])
    assert features.meta.fingerprint == pack.fingerprint
    assert features.meta.split == "train"
    assert {p.name for p in tmp_path.iterdir()} == {"run", "f"}
    assert {p.name for p in (tmp_path / "f").iterdir()} == {
        "features.json",
        "features.npy",
        "index.parquet",
        "probabilities.npy",
    }


@pytest.mark.slow  # starts torch in four processes
def test_torchrun_gives_the_same_bytes(tmp_path: Path, digits: Path, run: Path) -> None:
    pack = Pack.open(digits)
    options = EmbedOptions(dtype="float32", batch_size=32)
    embed(Network.from_run(run, pack), pack, tmp_path / "one", options)
    flags = f"--run {run} --data {digits} --out {tmp_path / 'two'} --dtype float32 --batch-size 32"
    # `--` keeps torchrun's parser from taking our --run for its --run-path.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "--", "thresher", "embed", *flags.split(), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["samples"], told["dimension"], told["workers"]) == (1437, 64, 2)
    for name in ("features.npy", "probabilities.npy", "index.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


SLOW = """
import os, time
from pathlib import Path
from thresher.models.registry import build

def slow(classes, channels):
    model = build("tiny", classes, channels)
    def wait(*_):
        time.sleep(float(os.environ.get("NAP", 0)))
        with open(os.environ["CALLS"], "a") as file:
            file.write("x")
    model.register_forward_pre_hook(wait)
    return model
"""


@pytest.mark.slow  # starts torch in a process to kill
def test_a_killed_embedding_goes_on_where_it_stopped(
    tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_net.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    torch.manual_seed(0)
    file = tmp_path / "w.safetensors"
    weights.save(build("tiny", 10, 1), file)
    calls, out = tmp_path / "calls", tmp_path / "f"
    flags = ["--model", "slow_net:slow", "--weights", str(file), "--data", str(digits)]
    flags += ["--out", str(out), "--batch-size", "16", "--dtype", "float32"]
    process = subprocess.Popen(
        [sys.executable, "-m", "thresher", "embed", *flags],
        cwd=tmp_path,
        env={**os.environ, "NAP": "0.05", "CALLS": str(calls), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob(".f.partial/*.done"))) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(tmp_path.glob(".f.partial/*.done")))
    assert not out.exists()
    with pytest.raises(ThresherError, match="there is no folder of features"):
        Features.open(out)

    monkeypatch.setenv("CALLS", str(calls))
    monkeypatch.setenv("NAP", "0")
    pack = Pack.open(digits)
    calls.write_text("")
    network = Network.from_weights("slow_net:slow", file, pack)
    options = EmbedOptions(dtype="float32", batch_size=16)
    embed(network, pack, out, options)
    # 90 batches of 16, and one image at the start to learn the shape.
    assert len(calls.read_text()) == 1 + 90 - 8 * done
    whole = embed(network, pack, tmp_path / "whole", options)
    assert (out / "features.npy").read_bytes() == (tmp_path / "whole/features.npy").read_bytes()
    assert len(whole) == 1437


def test_what_another_plan_left_is_not_gone_on_with(
    tmp_path: Path, digits: Path, run: Path
) -> None:
    pack = Pack.open(digits)
    staging = tmp_path / ".f.partial"
    staging.mkdir()
    write_json(staging / "plan.json", {"model": "another"})
    (staging / "0.done").touch()
    features = embed(Network.from_run(run, pack), pack, tmp_path / "f")
    assert np.abs(features.array[:100]).sum() > 0


def test_rows_that_are_done_are_not_those_of_a_pack_in_another_order(
    tmp_path: Path, digits: Path, run: Path
) -> None:
    pack = Pack.open(digits)
    order = np.random.default_rng(0).permutation(len(pack))
    ids, splits = pack.ids.take(order).to_pylist(), pack.splits.take(order).to_pylist()
    images, labels = pack.images(order), pack.labels[order]
    source = ArraySource(images, labels, splits, ids, pack.classes, pack.name)
    again = write_pack(source, tmp_path / "again")
    assert again.fingerprint == pack.fingerprint
    network, options = Network.from_run(run, pack), EmbedOptions(dtype="float32", batch_size=64)
    whole = embed(network, pack, tmp_path / "whole", options)

    left = [None] * 9  # to learn the shape, and the first chunk of eight batches

    def stop_in_time(*_: object) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()

    hook = network.model.register_forward_pre_hook(stop_in_time)
    with pytest.raises(KeyboardInterrupt):
        embed(network, pack, tmp_path / "f", options)
    hook.remove()
    assert (tmp_path / ".f.partial" / "0.done").exists()
    features = embed(network, again, tmp_path / "f", options)
    rows = rows_by_id(features.ids, whole.ids)
    assert np.allclose(features.array, whole.array[rows], atol=1e-5)


def test_another_head_gives_features_but_no_probabilities(tmp_path: Path, digits: Path) -> None:
    pack = Pack.open(digits)
    weights.save(build("tiny", 1000, 1), tmp_path / "w.safetensors")
    network = Network.from_weights("tiny", tmp_path / "w.safetensors", pack)
    features = embed(network, pack, tmp_path / "f")
    assert features.probabilities is None
    assert features.array.shape == (1437, 64)


def test_every_split_or_all(tmp_path: Path, digits: Path, run: Path) -> None:
    pack = Pack.open(digits)
    network = Network.from_run(run, pack)
    assert len(embed(network, pack, tmp_path / "test", EmbedOptions(split="test"))) == 360
    assert len(embed(network, pack, tmp_path / "all", EmbedOptions(split="all"))) == 1797
    with pytest.raises(ThresherError, match='has no split "tset"; did you mean "test"'):
        embed(network, pack, tmp_path / "x", EmbedOptions(split="tset"))
    assert not list(tmp_path.glob(".x*"))


def test_features_of_a_run_are_computed_once(digits: Path, run: Path) -> None:
    pack = Pack.open(digits)
    first = features_of_run(run, pack)
    assert first.path is not None
    stamp = (first.path / "features.npy").stat().st_mtime_ns
    second = features_of_run(run, pack)
    assert second.path == first.path
    assert (first.path / "features.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(first.array, second.array)
    assert features_of_run(run, pack, EmbedOptions(split="test")).meta.split == "test"


def test_features_of_other_samples_are_stale(digits: Path, run: Path, tmp_path: Path) -> None:
    """The fingerprint of a pack does not depend on its splits."""
    pack = Pack.open(digits)
    first = features_of_run(run, pack)
    splits = ["test" if n % 3 == 0 else "train" for n in range(len(pack))]
    images, ids = pack.images(np.arange(len(pack))), pack.ids.to_pylist()
    source = ArraySource(images, pack.labels, splits, ids, pack.classes, "digits")
    again = write_pack(source, tmp_path / "again")
    assert again.fingerprint == pack.fingerprint
    second = features_of_run(run, again)
    assert second.ids == again.ids.take(again.indices("train")).to_pylist()
    assert features_of_run(run, again).path == second.path
    assert features_of_run(run, pack).path == first.path


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["weights", "normalisation", "crop"])
def test_features_of_another_network_are_stale(digits: Path, run: Path, changed: str) -> None:
    pack = Pack.open(digits)
    first = features_of_run(run, pack)
    if changed == "weights":
        torch.manual_seed(9)
        weights.save(build("tiny", 10, 1), run / "model.safetensors")
    else:
        saved = json.loads((run / "run.json").read_text())
        saved["data" if changed == "normalisation" else "config"] |= (
            {"mean": [0.5]} if changed == "normalisation" else {"crop": 6}
        )
        write_json(run / "run.json", saved)
    second = features_of_run(run, pack)
    assert second.path != first.path
    assert not np.array_equal(first.array, second.array)
    assert features_of_run(run, pack).path == second.path
    assert np.array_equal(Features.open(str(first.path)).array, first.array), "the old ones stay"


def test_a_diverged_network_is_refused_and_leaves_nothing(tmp_path: Path, digits: Path) -> None:
    pack = Pack.open(digits)
    for value, sentence in ((np.nan, "are not finite"), (1e6, "too large for float16")):
        model = build("tiny", 10, 1)
        model.get_parameter("bn1.bias").data.fill_(value)
        model.get_parameter("layer3.0.bn2.bias").data.fill_(value)
        weights.save(model, tmp_path / "w.safetensors")
        network = Network.from_weights("tiny", tmp_path / "w.safetensors", pack)
        with pytest.raises(ThresherError, match=sentence):
            embed(network, pack, tmp_path / "f")
        assert {p.name for p in tmp_path.iterdir()} == {"w.safetensors"}


def test_bad_input(tmp_path: Path, digits: Path, run: Path) -> None:
    pack = Pack.open(digits)
    with pytest.raises(ThresherError, match="there is no run at"):
        Network.from_run(tmp_path / "none", pack)
    (run / "model.safetensors").unlink()
    with pytest.raises(ThresherError, match="has no model yet; let it finish"):
        Network.from_run(run, pack)
    weights.save(build("tiny", 10, 1), run / "model.safetensors")
    network = Network.from_run(run, pack)
    (tmp_path / "f").mkdir()
    with pytest.raises(ThresherError, match="f exists already"):
        embed(network, pack, tmp_path / "f")
    with pytest.raises(ThresherError, match='dtype cannot be "int8"'):
        embed(network, pack, tmp_path / "g", EmbedOptions(dtype="int8"))  # type: ignore[arg-type]
    with pytest.raises(ThresherError, match="batch_size must be at least 1, got 0"):
        embed(network, pack, tmp_path / "g", EmbedOptions(batch_size=0))


def test_one_network_is_required(tmp_path: Path, digits: Path, thresher: Run) -> None:
    flags = ("embed", "--data", digits, "--out", tmp_path / "f")
    done = thresher(*flags)
    assert done.returncode == 2
    assert "no network to embed with; give --run, or --model and --weights" in done.stderr
    done = thresher(*flags, "--from-run", "r", "--model", "tiny")
    assert "--run excludes --model and --weights" in done.stderr
    assert not list(tmp_path.iterdir())


def test_features_json_of_version_0_1_opens(tmp_path: Path, digits: Path, run: Path) -> None:
    """Written before `FeaturesMeta`: sizes as null, and a key that is not known."""
    pack = Pack.open(digits)
    embed(Network.from_run(run, pack), pack, tmp_path / "f")
    path = tmp_path / "f" / "features.json"
    saved = json.loads(path.read_text())
    assert saved["crop"] is None
    assert "weights" not in saved
    write_json(path, {**saved, "note": "mine"})
    meta = Features.open(tmp_path / "f").meta
    assert meta.model == "tiny"
    assert meta.mean == tuple(pack.mean.tolist())
    assert meta.crop is None


def test_raw_images_are_scaled_to_what_the_run_was_trained_at(tmp_path: Path, digits: Path) -> None:
    """Only encoded ones were: of the same images, a network got those of another size."""
    whole = Pack.open(digits)
    images = whole.images(np.arange(40)).repeat(3, axis=3).repeat(2, axis=1).repeat(2, axis=2)
    ids = [f"{n}.png" for n in range(40)]
    source = ArraySource(images, whole.labels[:40], ["train"] * 40, ids, whole.classes)
    raw = write_pack(source, tmp_path / "raw", WriteOptions(processes=1))
    export(raw, tmp_path / "folder", "folder")
    files = Folder(tmp_path / "folder").as_encoded()
    encoded = write_pack(files, tmp_path / "encoded", WriteOptions(processes=1))
    weights.save(build("tiny", 10, 3), tmp_path / "run" / "model.safetensors")
    data = {"mean": raw.mean.tolist(), "std": raw.std.tolist()}

    def of_run(pack: Pack, resolved: int) -> Features:
        run = {"config": {"model": "tiny", "image_size": 8}, "data": data}
        write_json(tmp_path / "run" / "run.json", {**run, "resolved": {"image_size": resolved}})
        return features_of_run(tmp_path / "run", pack)

    features = of_run(raw, 8)
    assert (encoded.image_shape, features.meta.image_size) == (None, 8)
    of_files = of_run(encoded, 8)
    rows = rows_by_id(features.ids, of_files.ids)
    np.testing.assert_allclose(features.array, of_files.array[rows], atol=1e-3)
    assert of_run(raw, 16).meta.image_size is None  # trained on raw images of 16 pixels
