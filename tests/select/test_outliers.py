"""Outliers: far samples, small clusters far from their class, and broken images."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from planted import plant
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.select.filters.outliers import OutliersFilter

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_far_samples_and_far_clusters_are_found() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(2000, 16))
    labels = np.arange(2000) % 2
    x[labels == 1] *= 5  # a wide class has no more outliers than a narrow one
    x[:10] += 15 * random.normal(size=(10, 16))
    x[10:40] = 60 + 0.01 * random.normal(size=(30, 16))  # 15 of each class, close together
    fitted = OutliersFilter().fit(x, labels)
    assert not fitted.keep_[10:40].any()
    assert (~fitted.keep_[:10])[labels[:10] == 0].all()
    assert (~fitted.keep_[40:]).mean() <= 0.01
    assert fitted.reason_[10].endswith("deviations from its class")
    near_only = OutliersFilter(k=5).fit(x, labels)
    assert near_only.keep_[10:40].all(), "five neighbours are all in the cluster"


def test_copies_of_one_image_and_tiny_classes_are_kept() -> None:
    x = np.concatenate([np.ones((20, 4)), np.eye(4)[:2]])
    assert OutliersFilter().fit(x, [0] * 20 + [1, 1]).keep_.all()


def test_the_command_finds_planted_noise(tmp_path: Path, digits: Path, thresher: Run) -> None:
    """At least 90 % of the broken images and at most 1 % of the good, with pixels as features."""
    truth = plant(Pack.open(digits), tmp_path / "pack")
    pack = Pack.open(tmp_path / "pack")
    train = pack.indices("train")
    np.save(tmp_path / "f.npy", pack.images(train).reshape(len(train), -1).astype(np.float32))
    ids = pack.ids.take(train).to_pylist()
    (tmp_path / "f.ids.txt").write_text("\n".join(ids))
    out = tmp_path / "S.parquet"
    flags = ["--data", pack.root, "--features", tmp_path / "f.npy", "--out", out]
    done = thresher("select", "outliers", *flags)
    assert done.returncode == 0, done.stderr
    chosen = Selection.load(out)
    dropped = {id for id, keep in zip(chosen.ids, chosen.keep, strict=True) if not keep}
    broken = {*truth["noise"], *truth["blank"]}
    good = set(ids).difference(*truth.values())
    assert len(dropped & broken) >= 0.9 * len(broken)
    assert len(dropped & good) <= 0.01 * len(good)
    reasons = dict(zip(chosen.ids, chosen.reason, strict=True))
    assert {reasons[id] for id in dropped & broken} <= {"noise image", "blank image"}
    assert chosen.meta["blank"] == 5
