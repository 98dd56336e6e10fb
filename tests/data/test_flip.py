"""Packs with wrong labels on purpose."""

from pathlib import Path

import numpy as np
import pytest

from thresher.data.flip import ORACLE, FlipOptions, flip_labels
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.npz import Npz
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError


def test_a_share_of_the_training_labels_is_wrong(digits: Path, tmp_path: Path) -> None:
    pack = Pack.open(digits)
    copy = flip_labels(pack, tmp_path / "flipped", FlipOptions(share=0.15, seed=3))
    train, test = copy.indices("train"), copy.indices("test")
    at = pack.positions(copy.ids)
    assert (at >= 0).all()
    wrong = copy.labels != pack.labels[at]
    assert wrong[train].sum() == round(0.15 * len(train))
    assert not wrong[test].any()
    np.testing.assert_array_equal(copy.images(np.arange(len(copy))), pack.images(at))
    oracle = Selection.load(tmp_path / "flipped" / ORACLE)
    np.testing.assert_array_equal(np.setdiff1d(train, oracle.indices(copy)), np.nonzero(wrong)[0])
    first = copy.ids[int(np.nonzero(wrong)[0][0])].as_py()
    old, new = (p.classes[p.labels[p.positions([first])[0]]] for p in (pack, copy))
    assert oracle.reason[oracle.ids.index(first)] == f"label changed from {old} to {new}"


def test_it_can_be_called_again(digits: Path, tmp_path: Path) -> None:
    pack, out = Pack.open(digits), tmp_path / "flipped"
    first = flip_labels(pack, out, FlipOptions(share=0.1))
    (out / ORACLE).unlink()  # as if killed before it was written
    (out / ORACLE).with_suffix(".json").unlink()
    assert flip_labels(pack, out, FlipOptions(share=0.1)).fingerprint == first.fingerprint
    assert (out / ORACLE).exists()
    with pytest.raises(ThresherError, match="exists already"):
        flip_labels(pack, out, FlipOptions(share=0.2))
    with pytest.raises(ThresherError, match="share must be"):
        flip_labels(pack, tmp_path / "x", FlipOptions(share=1.0))


def test_a_copy_with_other_splits_is_another_one(tmp_path: Path) -> None:
    rows = np.arange(40)
    images = (rows[:, None, None, None] * np.ones((1, 4, 4, 1))).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=rows % 2)
    packs = [
        write_pack(Npz(tmp_path / "images.npz"), tmp_path / str(share), WriteOptions(test=share))
        for share in (0.1, 0.3)
    ]
    assert packs[0].fingerprint == packs[1].fingerprint
    flip_labels(packs[0], tmp_path / "flipped")
    flip_labels(packs[0], tmp_path / "flipped")
    with pytest.raises(ThresherError, match="exists already"):
        flip_labels(packs[1], tmp_path / "flipped")


def test_the_command(digits: Path, tmp_path: Path, thresher) -> None:  # type: ignore[no-untyped-def]
    done = thresher("data", "flip", "digits", tmp_path / "f", "--share", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    assert '"changed": 287' in done.stdout
    done = thresher("data", "flip", "digits", tmp_path / "g", "--share", "nan")
    assert done.returncode == 2
    assert "--share" in done.stderr
