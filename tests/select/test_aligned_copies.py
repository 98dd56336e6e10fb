"""Shifted, mirrored, recoloured and cropped copies of test images are found, and little else."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from planted import ArraySource
from thresher.auditing.checks import Checks
from thresher.auditing.config import AuditConfig
from thresher.data.pack import Pack
from thresher.data.write import write_pack
from thresher.select.aligned_copies import aligned_copies
from thresher.select.copies import pixel_vectors
from thresher.select.run import training_inputs

TRAIN, TEST, EACH = 1500, 250, 12
CHANGES = ("shift", "mirror", "colour", "blur", "jpeg", "crop")


def changed(image: np.ndarray, change: str, random: np.random.Generator) -> np.ndarray:
    """Return a near-copy of an image (32, 32, 3)."""
    picture = Image.fromarray(image)
    if change == "shift":
        down, across = random.integers(0, 7, 2)
        wide = np.pad(image, ((3, 3), (3, 3), (0, 0)), mode="edge")
        return wide[down : down + 32, across : across + 32]
    if change == "mirror":
        return image[:, ::-1]
    if change == "colour":
        shifted = image * random.uniform(0.8, 1.2, 3) + random.uniform(-20, 20, 3)
        return np.clip(shifted, 0, 255).astype(np.uint8)
    if change == "blur":
        return np.asarray(picture.filter(ImageFilter.GaussianBlur(0.8)))
    if change == "jpeg":
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=40)
        return np.asarray(Image.open(file))
    return np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR, box=(1, 1, 31, 31)))


@pytest.fixture(scope="module")
def leaky(cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Some of CIFAR-10; the first training images are changed copies of the first test images."""
    source, random = Pack.open(cifar10), np.random.default_rng(0)
    train, test = source.indices("train")[:TRAIN], source.indices("test")[:TEST]
    images = source.images(np.concatenate([train, test]))
    for number in range(EACH * len(CHANGES)):
        change = CHANGES[number // EACH]
        images[number] = changed(images[TRAIN + number], change, random)
    ids = [f"{n:04d}" for n in range(len(images))]
    labels = source.labels[np.concatenate([train, test])]
    splits = ["train"] * TRAIN + ["test"] * TEST
    made = ArraySource(images, labels, splits, ids, list(source.classes))
    return write_pack(made, tmp_path_factory.mktemp("leaky") / "pack")


@pytest.mark.slow
def test_changed_copies_are_found_and_little_else(leaky: Pack, tmp_path: Path) -> None:
    train, test = leaky.indices("train"), leaky.indices("test")
    vectors = pixel_vectors(leaky, np.concatenate([train, test]))
    later, earlier, similarity = aligned_copies(leaky, train, test, vectors, 0.5)
    planted = EACH * len(CHANGES)
    right = (later - TRAIN == earlier) & (earlier < planted)
    assert len(later) - right.sum() <= 1
    assert similarity[right].min() > 0.8
    found = np.isin(np.arange(planted), earlier[right]).reshape(len(CHANGES), EACH).mean(axis=1)
    recall = dict(zip(CHANGES, found.tolist(), strict=True))
    assert min(recall.values()) >= 0.75, recall
    assert min(recall[change] for change in ("mirror", "colour", "blur", "jpeg")) >= 0.9, recall
    # A larger share lists more: all of these, and borderline pairs.
    more = aligned_copies(leaky, train, test, vectors, 0.7)
    assert set(zip(later, earlier, strict=True)) < set(zip(more.later, more.earlier, strict=True))
    # Upside down no test image has a copy, but looks like a picture: nothing may be found.
    turned = vectors.copy()
    turned[TRAIN:] = vectors[TRAIN:].reshape(TEST, 8, 8, 3)[:, ::-1].reshape(TEST, -1)
    images = leaky.images(np.arange(len(leaky)))
    images[test] = images[test, ::-1]
    ids, splits = leaky.ids.to_pylist(), leaky.splits.to_pylist()
    made = ArraySource(images, leaky.labels, splits, ids, list(leaky.classes))
    upside = write_pack(made, tmp_path / "upside")
    assert len(aligned_copies(upside, train, test, turned, 0.5).later) == 0


@pytest.mark.slow
def test_the_audit_counts_them_as_leakage(leaky: Pack) -> None:
    counts = {}
    for leakage in (0.0, 0.5):
        look = Checks(leaky, training_inputs(leaky), AuditConfig(leakage=leakage))
        look.copies()
        (found,) = (one for one in look.findings if one.kind == "leakage")
        counts[leakage] = found.count
        assert found.share == found.count / TEST
        assert found.dropped >= found.count > 0
        pairs = [(one.id, one.other) for one in found.examples]
        assert len(set(pairs)) == len(pairs)
    planted = EACH * len(CHANGES)
    assert counts[0.0] < 0.75 * planted <= counts[0.5] <= 1.05 * planted


def test_images_without_details_have_no_aligned_copies(digits: Path) -> None:
    pack = Pack.open(digits)
    train, test = pack.indices("train")[:50], pack.indices("test")[:50]
    vectors = pixel_vectors(pack, np.concatenate([train, test]))
    assert len(aligned_copies(pack, train, test, vectors, 0.5).later) == 0
