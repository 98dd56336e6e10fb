"""Data sets whose labels are names of classes."""

from pathlib import Path

import pytest
from source_packs import packed

from made_images import picture
from thresher.data.sources.registry import open_source
from thresher.errors import ThresherError


def test_hugging_face_with_names_as_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a table of a spreadsheet has them; splits may have different classes."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    names = {"train": ["dog", "cat", "dog"], "test": ["eel", "dog"]}
    for split, labels in names.items():
        (tmp_path / "set" / split).mkdir(parents=True)
        rows = [f"{n}.png,{label}" for n, label in enumerate(labels)]
        table = "\r\n".join(["file_name,label", *rows, ""])
        (tmp_path / "set" / split / "metadata.csv").write_text(table, encoding="utf-8-sig")
        for n in range(len(labels)):
            (tmp_path / "set" / split / f"{n}.png").write_bytes(picture(n, 9, 9, "PNG"))
    pack = packed(f"hf:{tmp_path / 'set'}", tmp_path / "pack")
    assert pack.classes == ["cat", "dog", "eel"]
    assert pack.labels.tolist() == [1, 0, 1, 2, 1]
    assert pack.meta.splits == {"train": 3, "test": 2}
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "1.parquet").write_bytes(b"")
    with pytest.raises(ThresherError, match="Parquet files that hold images is read as hf:"):
        open_source(tmp_path / "tables")
