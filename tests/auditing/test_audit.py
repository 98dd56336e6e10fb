"""Audits find what was planted, drop it and little else, and can be repeated."""

import html
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from planted import ArraySource, plant
from thresher.auditing.audit import audit
from thresher.auditing.checks import Checks
from thresher.auditing.config import AuditConfig
from thresher.auditing.findings import KINDS, Audit, Example, Finding
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.folder import Folder
from thresher.data.sources.npz import Npz
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError
from thresher.report.audit_page import render
from thresher.report.page import write_report
from thresher.select.run import training_inputs

Run = Callable[..., subprocess.CompletedProcess[str]]
Once = Callable[[str, Callable[[Path], None]], Path]


@dataclass
class Planted:
    """An audited pack with known faults."""

    folder: Path
    truth: dict[str, list[str]]
    told: dict[str, Any]

    @property
    def dropped(self) -> set[str]:
        chosen = Selection.load(self.folder / "out" / "selection.parquet")
        return {id for id, keep in zip(chosen.ids, chosen.keep, strict=True) if not keep}

    def found(self, *kinds: str) -> float:
        """Return the share of the planted faults that the selection drops."""
        bad = {id for kind in kinds for id in self.truth[kind]}
        return len(self.dropped & bad) / len(bad)

    def finding(self, kind: str) -> dict[str, Any]:
        (finding,) = (one for one in self.told["findings"] if one["kind"] == kind)
        return finding


@pytest.fixture(scope="module")
def planted(once: Once, digits: Path, thresher: Run) -> Planted:
    def make(folder: Path) -> None:
        truth = plant(Pack.open(digits), folder / "pack")
        (folder / "truth.json").write_text(json.dumps(truth))
        flags = ["--data", folder / "pack", "--out", folder / "out", "--device", "cpu"]
        done = thresher("audit", *flags, "--json")
        assert done.returncode == 0, done.stderr
        (folder / "told.json").write_text(done.stdout)

    folder = once("audit", make)
    read = {name: json.loads((folder / f"{name}.json").read_text()) for name in ("truth", "told")}
    return Planted(folder, read["truth"], read["told"])


@pytest.mark.slow  # trains a network
def test_planted_faults_are_found_and_good_images_are_kept(planted: Planted) -> None:
    assert planted.found("noise", "blank") >= 0.9
    assert planted.found("leak") >= 0.9
    assert planted.found("flipped") >= 0.7
    # Of a copy under another label and its original, one goes; usually the wrong one.
    assert planted.found("cross") >= 0.75
    assert planted.found("copy") >= 0.4, "the first of two copies stays, whichever was planted"
    pack = Pack.open(planted.folder / "pack")
    train = pack.ids.take(pack.indices("train")).to_pylist()
    good = set(train).difference(*planted.truth.values())
    # The originals of the copies may go instead of them.
    assert len(planted.dropped & good) <= 0.02 * len(good) + len(planted.truth["copy"])


@pytest.mark.slow
def test_findings_count_what_was_planted(planted: Planted) -> None:
    told = planted.told
    assert {"findings", "selection", "page"} <= set(told)
    assert all({"kind", "count", "share", "examples"} <= set(one) for one in told["findings"])
    assert {one["kind"] for one in told["findings"]} == set(KINDS)
    wanted = {"leakage": 20, "conflicts": 15, "near-duplicates": 25, "noise": 30, "blank": 5}
    for kind, count in wanted.items():
        assert abs(planted.finding(kind)["count"] - count) <= 0.1 * count, kind
    leaks = planted.finding("leakage")
    assert leaks["share"] == leaks["count"] / 360
    example = leaks["examples"][0]
    assert example["id"] in planted.truth["leak"]
    pack = Pack.open(planted.folder / "pack")
    test = set(pack.ids.take(pack.indices("test")).to_pylist())
    assert {one["other"] for one in leaks["examples"]} <= test
    wrong = set(planted.truth["flipped"] + planted.truth["cross"])
    ranked = [one["id"] for one in planted.finding("label-errors")["examples"]]
    assert np.mean([id in wrong for id in ranked]) >= 0.8, "the most suspicious come first"
    counts = [one["count"] for one in told["findings"]]
    assert counts.index(0) > max(n for n, count in enumerate(counts) if count)
    assert planted.finding("label-errors")["dropped"] == planted.finding("label-errors")["count"]


@pytest.mark.slow
def test_the_selection_trains_and_the_page_stands_alone(
    planted: Planted, thresher: Run, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = ["--data", planted.folder / "pack", "--selection", planted.told["selection"]]
    done = thresher("train", *flags, "--model", "tiny", "--epochs", 1, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    page = Path(planted.told["page"]).read_text()
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<img") >= 24
    assert "Test images with a near-copy in training: 20" in page


@pytest.mark.slow
def test_a_finished_audit_is_returned_and_another_is_refused(
    planted: Planted, thresher: Run
) -> None:
    out = planted.folder / "out"
    stamp = (out / "selection.parquet").stat().st_mtime_ns
    flags = ["--data", planted.folder / "pack", "--out", out]
    again = thresher("audit", *flags, "--device", "cpu", "--json")
    assert json.loads(again.stdout) == planted.told
    assert (out / "selection.parquet").stat().st_mtime_ns == stamp
    other = thresher("audit", *flags, "--seed", 1)
    assert other.returncode == 2
    assert (
        "holds an audit of other data, with other options or another network; choose"
        in other.stderr
    )


def pixels(pack: Pack, file: Path) -> Path:
    """Save the pixels of the training images as features."""
    train = pack.indices("train")
    np.save(file, pack.images(train).reshape(len(train), -1).astype(np.float32) / 255)
    file.with_suffix(".ids.txt").write_text("\n".join(pack.ids.take(train).to_pylist()))
    return file


def finding(result: Audit, kind: str) -> Finding:
    (found,) = (one for one in result.findings if one.kind == kind)
    return found


@pytest.mark.slow
def test_an_interrupted_audit_resumes_to_the_same_result(tmp_path: Path, digits: Path) -> None:
    plant(Pack.open(digits), tmp_path / "pack")
    pack = Pack.open(tmp_path / "pack")
    config = AuditConfig(features=pixels(pack, tmp_path / "f.npy"))
    first = audit(pack, tmp_path / "out", config)
    (tmp_path / "out" / "audit.json").unlink()  # killed before the last file
    (tmp_path / "out" / "index.html").unlink(missing_ok=True)
    assert audit(pack, tmp_path / "out", config) == first
    (tmp_path / "out" / "audit.json").write_text('{"format": 1}')
    with pytest.raises(ThresherError, match=r"audit.json is damaged; remove it and audit again"):
        audit(pack, tmp_path / "out", config)
    assert first.network == f"features in {tmp_path / 'f.npy'}"
    assert finding(first, "noise").count >= 27
    assert finding(first, "leakage").count >= 18
    # Every image that a finding calls a copy is linked to what it is a copy of.
    links = Selection.load(first.selection).copies
    assert links is not None
    named = {*links.ids, *links.others}
    assert len(links.ids) < len(named), "the fewest links: no cycles"
    for kind in ("leakage", "conflicts", "near-duplicates"):
        for example in finding(first, kind).examples:
            assert {example.id, example.other} <= named, kind
    train = set(Selection.load(first.selection).ids)
    assert set(links.ids) <= train
    tested = set(links.others) - train
    assert len(tested) == finding(first, "leakage").count


@pytest.mark.slow
def test_names_are_escaped_and_small_classes_are_reported(tmp_path: Path, digits: Path) -> None:
    source = Pack.open(digits)
    train = source.indices("train")[:300]
    images, labels = source.images(train), source.labels[train]
    keep = (labels != 3) | (np.cumsum(labels == 3) <= 4)
    images, labels = images[keep], labels[keep]
    images[5] = 0
    n = len(labels)
    classes = [*map(str, range(9)), "<script>alert(1)</script>"]
    ids = [f"<b>&'{row}" for row in range(n)]
    made = ArraySource(images, labels, ["train"] * n, ids, classes)
    pack = write_pack(made, tmp_path / "pack")
    result = audit(
        pack, tmp_path / "out", AuditConfig(features=pixels(pack, tmp_path / "f.npy"), examples=2)
    )
    page = write_report(result).read_text()
    assert "<script" not in page
    assert "<b>&'5" not in page
    assert "&lt;b&gt;&amp;&#x27;5" in page
    small = finding(result, "small-classes")
    assert [(one.id, one.reason) for one in small.examples] == [("3", "4 training images")]
    assert small.share == 0.1
    assert finding(result, "blank").dropped == 1
    assert (finding(result, "leakage").count, result.test) == (0, 0)


@pytest.mark.slow
def test_weak_features_drop_no_labels(tmp_path: Path, digits: Path) -> None:
    """A classifier that is wrong about most labels must not decide."""
    pack = Pack.open(digits)
    file = pixels(pack, tmp_path / "f.npy")
    random = np.random.default_rng(0).normal(size=(1437, 16)).astype(np.float32)
    np.save(file, random)
    result = audit(pack, tmp_path / "out", AuditConfig(features=file))
    errors = finding(result, "label-errors")
    assert errors.count > 100
    assert errors.dropped == finding(result, "outliers").dropped == 0
    assert "of the labels: label errors and outliers are hints" in result.notes[0]
    assert result.notes[0].endswith("A better network finds more.")
    chosen = Selection.load(result.selection)
    assert chosen.meta["features"] == str(file)  # so that the page finds neighbours by features
    assert any(reason.startswith("kept: label") for reason in chosen.reason)


def test_one_class_has_no_label_errors(tmp_path: Path, digits: Path) -> None:
    source = Pack.open(digits)
    train = source.indices("train")[:50]
    ids = [str(row) for row in range(50)]
    made = ArraySource(source.images(train), np.zeros(50, int), ["train"] * 50, ids, ["a"])
    pack = write_pack(made, tmp_path / "pack")
    config = AuditConfig(features=pixels(pack, tmp_path / "f.npy"))
    result = audit(pack, tmp_path / "out", config)
    assert result.notes == (
        "Label errors were not looked for: there is one class. Outliers are hints, and nothing is "
        "dropped for them.",
    )
    shutil.rmtree(pack.root)
    again = write_pack(replace(made, splits=["test", *made.splits[1:]]), pack.root)
    assert again.fingerprint == pack.fingerprint
    with pytest.raises(ThresherError, match="holds an audit of other data"):
        audit(again, tmp_path / "out", config)


def test_a_class_of_one_image_broken_files_and_other_features(tmp_path: Path, digits: Path) -> None:
    source, images = Pack.open(digits), tmp_path / "images"
    zeros, ones, twos = (np.flatnonzero(source.labels == label)[:20] for label in range(3))
    for name, positions in (("a", zeros), ("b", ones), ("c", twos[:1]), ("broken", ())):
        (images / name).mkdir(parents=True)
        for row, position in enumerate(positions):
            picture = Image.fromarray(source.view(int(position))[:, :, 0])
            picture.save(images / name / f"{row}.png")
    for row in range(59):
        (images / "broken" / f"{row}.png").write_bytes(b"no image")
    pack = write_pack(Folder(images), tmp_path / "pack")
    file = pixels(pack, tmp_path / "f.npy")
    features = np.load(file)
    features[7] *= 100
    np.save(file, features)
    result = audit(pack, tmp_path / "out", AuditConfig(features=file))
    assert "class c has one image" in result.notes[0]
    assert finding(result, "outliers").count > 0
    assert finding(result, "outliers").dropped == 0
    assert result.kept == 41
    unreadable = finding(result, "unreadable")
    assert (unreadable.count, unreadable.share) == (59, 0.59)  # of all 100 files
    np.save(file, features + 1)  # another network, with the same options
    with pytest.raises(ThresherError, match="with other options or another network; choose"):
        audit(pack, tmp_path / "out", AuditConfig(features=file))
    file.unlink()
    assert audit(pack, tmp_path / "out", AuditConfig(features=file)) == result


def test_the_page_shows_no_image_for_a_class_and_commands_that_run(digits: Path) -> None:
    """An id such as "3" may also be the name of a class."""
    small = Finding(kind="small-classes", count=1, share=0.1, examples=(Example(id="digits/0007"),))
    blank = replace(small, kind="blank")
    made = Audit(
        data="digits", fingerprint="", classes=10, train=1437, test=360, kept=1437, network="",
        findings=(small,), selection="an audit/selection.parquet", page="",
    )  # fmt: skip
    page = render(made, Pack.open(digits))
    assert "<img" not in page
    assert "<img" in render(replace(made, findings=(blank,)), Pack.open(digits))
    command = "--selection &#x27;an audit/selection.parquet&#x27; --out RUN</code>"
    assert command in page


def test_the_next_commands_name_a_size_if_images_differ_in_size(
    digits: Path, tmp_path: Path
) -> None:
    """`thresher train` needs it, and the command that an audit printed did not have it."""
    made = Audit(
        data="photos", fingerprint="", classes=1, train=2, test=0, kept=2, network="",
        findings=(), selection="S.parquet", page="", settings={"image_size": 48},
    )  # fmt: skip
    (tmp_path / "images" / "a").mkdir(parents=True)
    for side in (150, 200):
        Image.new("RGB", (side, side)).save(tmp_path / "images" / "a" / f"{side}.png")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack", WriteOptions(processes=1))
    assert "--image-size 48 --out RUN</code>" in render(made, pack)
    assert "--image-size" not in render(made, Pack.open(digits))
    # The default of an audit is too small to train on; photographs were scaled to 32 pixels.
    made = replace(made, settings={"image_size": AuditConfig.image_size})
    assert "--image-size 160 --out RUN</code>" in render(made, pack)
    for side in (200, 150):
        Image.new("RGB", (500, 375)).save(tmp_path / "images" / "a" / f"{side}.png")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "photos", WriteOptions(processes=1))
    assert "--image-size 224 --out RUN</code>" in render(made, pack)


@pytest.mark.slow  # trains a network
def test_a_folder_of_images(tmp_path: Path, digits: Path, thresher: Run) -> None:
    pack = Pack.open(digits)
    for position in pack.indices("train")[:200]:
        folder = tmp_path / "images" / pack.classes[pack.labels[position]]
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(pack.view(int(position))[:, :, 0])
        image.save(folder / f"{position}.png")
    (tmp_path / "images" / "0" / "broken.png").write_bytes(b"no image")
    done = thresher("audit", tmp_path / "images", "--out", tmp_path / "out", "--epochs", 2)
    assert done.returncode == 0, done.stderr
    assert "Unreadable files" in done.stdout
    assert "Train without them: thresher train" in done.stdout
    assert f"Review them: thresher view {tmp_path / 'out' / 'selection.parquet'}" in done.stdout
    told = json.loads((tmp_path / "out" / "audit.json").read_text())
    (unreadable,) = (one for one in told["findings"] if one["kind"] == "unreadable")
    assert unreadable["count"] == 1
    assert unreadable["examples"][0]["id"] == "0/broken.png"
    assert Path(Selection.load(told["selection"]).meta["features"]).exists()


@pytest.mark.slow
def test_bad_input(tmp_path: Path, digits: Path, thresher: Run) -> None:
    def says(*flags: object) -> str:
        done = thresher("audit", *flags, "--out", tmp_path / "out")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()
        return done.stderr

    (tmp_path / "empty").mkdir()
    assert "empty has no image file; expected class/name.ext" in says(tmp_path / "empty")
    (tmp_path / "flat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "flat" / "a.png")
    assert "a.png is not in a class folder; expected" in says(tmp_path / "flat")
    assert 'there is no pack "' in says("--data", tmp_path / "none")
    assert "the data to audit must be named once; give --data" in says()
    assert "the data to audit must be named once" in says(digits, "--data", digits)
    given = "--model must be efficientnet-lite0 or hf:FOLDER, got tiny; use --network"
    assert given in says(digits, "--model", "tiny")
    assert "--run and --model exclude each other" in says(digits, "--model", "hf:x", "--run", "r")
    assert "no folder and no cached model" in says(digits, "--model", "hf:no/where")
    assert "there are no features at" in says(digits, "--features", tmp_path / "f.npy")


def test_a_folder_with_other_files_is_refused(tmp_path: Path, digits: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ThresherError, match="exists already and is not an audit; choose another"):
        audit(Pack.open(digits), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_conflicts_count_images_and_not_pairs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 4, 4, 3), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
    images[1:6] = images[0]  # three of each label: nine pairs
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(40) % 2)
    pack = write_pack(Npz(tmp_path / "a.npz"), tmp_path / "pack")
    look = Checks(pack, training_inputs(pack), AuditConfig())
    look.copies()
    (found,) = (finding for finding in look.findings if finding.kind == "conflicts")
    assert (found.count, found.share, found.dropped) == (5, 5 / 40, 5)
    assert np.flatnonzero(~look.keep).tolist() == [1, 2, 3, 4, 5]
    assert [note.endswith("the later one was dropped. Look at both.") for note in look.notes] == [
        True
    ]


def test_a_handful_of_images_is_audited(tmp_path: Path) -> None:
    """Fewer than a batch of the network that is trained on them."""
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 1), dtype=np.uint8)
    images[8] = images[0]
    np.savez(tmp_path / "few.npz", images=images, labels=np.arange(9) % 2)
    found = audit(tmp_path / "few.npz", tmp_path / "out", AuditConfig(epochs=1, device="cpu"))
    assert {one.kind: one.count for one in found.findings}["near-duplicates"] == 1
    assert found.train == 9
    assert found.notes[0].endswith("finds more: try --model efficientnet-lite0.")


def test_commands_of_an_audit_page_can_be_copied(digits: Path) -> None:
    found = Audit(
        data="my photos",
        fingerprint="0a1b",
        classes=2,
        train=9,
        test=0,
        kept=9,
        network="tiny",
        findings=(),
        selection="my audit/selection.parquet",
        page="my audit/index.html",
    )
    text = render(found, Pack.open(digits))
    commands = [html.unescape(code) for code in re.findall("<code>(.*?)</code>", text)]
    data = ["--data", str(digits), "--selection", found.selection]
    assert [shlex.split(command) for command in commands] == [
        ["thresher", "view", found.selection],
        ["thresher", "train", *data, "--out", "RUN"],
        ["thresher", "data", "export", str(digits), "CLEANED", *data[2:]],
    ]
