"""Every example loop sees the kept ids in an epoch, and no others."""

import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloo_ranks import run_ranks
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.sources.webdataset import WebDataset
from thresher.data.write import write_pack

EXAMPLES = Path(__file__).parents[2] / "examples" / "loops"
TARS = 6


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def select(pack: Pack, path: Path) -> tuple[str, set[str]]:
    """Save a random selection with some new labels; return its path and the kept ids."""
    train = pack.indices("train")
    keep = np.random.default_rng(0).random(len(train)) < 0.7
    ids = pack.ids.take(train).to_pylist()
    Selection(
        ids=ids,
        labels=pack.labels[train],
        keep=keep,
        score=np.zeros(len(train), np.float32),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
        new_labels=np.where(np.arange(len(train)) % 3, -1, 7).astype(np.int32),
    ).save(path)
    return str(path), {id for id, kept in zip(ids, keep, strict=True) if kept}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    text = file.read_text()
    compile(text, file, "exec")
    assert text.count("\n") <= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("plain_torch", "torch"),
        ("lightning_trainer", "pytorch_lightning"),
    ],
)
def test_an_epoch_holds_the_kept_ids(
    name: str, library: str, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    selection, kept = select(Pack.open(digits), tmp_path / "s.parquet")
    seen = load(name).train(str(digits), selection)
    assert set(seen) == kept
    assert len(seen) == len(kept)


@pytest.mark.slow
def test_the_trainer_of_transformers_gets_the_kept_ids_with_new_labels(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    path, kept = select(Pack.open(digits), tmp_path / "s.parquet")
    module, used = load("hf_trainer"), []

    class Noting(module.Classifier):  # type: ignore[name-defined]
        def forward(self, images: Any, labels: Any) -> Any:
            used.extend(labels.tolist())
            return super().forward(images, labels)

    monkeypatch.setattr(module, "Classifier", Noting)
    seen, selection = module.train(str(digits), path), Selection.load(path)
    given = dict(zip(selection.ids, selection.final_labels.tolist(), strict=True))
    assert sorted(seen) == sorted(kept)
    assert used == [given[id] for id in seen]


def _plain(rank: int, world: int, data: str, selection: str) -> list[str]:
    return load("plain_torch").train(data, selection, epochs=2)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_three_ranks_together_see_the_kept_ids(digits: Path, tmp_path: Path) -> None:
    selection, kept = select(Pack.open(digits), tmp_path / "s.parquet")
    ranks = run_ranks(3, _plain, str(digits), selection)
    assert {id for seen in ranks for id in seen} == kept
    assert sum(map(len, ranks)) - len(kept) in (0, 1, 2)  # the first samples fill the last row
    assert len({len(seen) for seen in ranks}) == 1


def write_tars(folder: Path) -> list[str]:
    """Write 20 samples a tar, with keys that no other tar has."""
    from PIL import Image

    random = np.random.default_rng(0)
    folder.mkdir()
    for tar in range(TARS):
        with tarfile.open(folder / f"train-{tar}.tar", "w") as archive:
            for n in range(20):
                image = io.BytesIO()
                pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(image, "png")
                for kind, data in (("png", image.getvalue()), ("cls", b"%d" % (n % 4))):
                    member = tarfile.TarInfo(f"{tar}-{n:02d}.{kind}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return sorted(map(str, folder.glob("*.tar")))


def _web(rank: int, world: int, selection: str, tars: list[str]) -> list[str]:
    return load("web_dataset").train(selection, tars)


@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_web_datasets_on_one_and_three_ranks(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    tars = write_tars(tmp_path / "tars")
    pack = write_pack(WebDataset(tmp_path / "tars"), tmp_path / "pack")
    selection, kept = select(pack, tmp_path / "s.parquet")
    keys = sorted(id.partition("/")[2] for id in kept)
    assert sorted(load("web_dataset").train(selection, tars)) == keys
    ranks = run_ranks(3, _web, selection, tars)
    assert sorted(key for seen in ranks for key in seen) == keys
    assert all(ranks)
