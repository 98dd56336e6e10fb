"""Features as files: what embed writes, who may read it, and what comes from elsewhere."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thresher.errors import ThresherError
from thresher.models.features import Features

IDS = ["b", "a", "c"]
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_an_array_with_its_ids_beside_it(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", ROWS)
    with pytest.raises(ThresherError, match=r"have no ids; write them, one per line, to"):
        Features.open(tmp_path / "f.npy")
    (tmp_path / "f.ids.txt").write_text("\n".join(IDS) + "\n")
    features = Features.open(tmp_path / "f.npy")
    assert features.ids == IDS
    assert np.array_equal(features.array, ROWS)
    assert isinstance(features.array, np.memmap)
    assert features.labels is None
    assert features.probabilities is None
    assert Features.from_array(tmp_path / "f.npy", ["x", "y", "z"]).ids == ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["columns", "lists", "fixed lists"])
def test_parquet_in_its_usual_forms(tmp_path: Path, kind: str) -> None:
    columns: dict[str, object] = {"id": IDS, "label": [1, 0, 1]}
    if kind == "columns":
        columns |= {f"f{n}": ROWS[:, n] for n in range(4)}
    else:
        size = 4 if kind == "fixed lists" else -1
        columns["embedding"] = pa.array(ROWS.tolist(), pa.list_(pa.float32(), size))
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    features = Features.open(tmp_path / "f.parquet")
    assert features.ids == IDS
    assert features.labels is not None
    assert features.labels.tolist() == [1, 0, 1]
    assert np.array_equal(features.array, ROWS)


def test_what_is_refused(tmp_path: Path) -> None:
    def says(path: Path) -> str:
        with pytest.raises(ThresherError) as caught:
            Features.open(path)
        return str(caught.value)

    assert "there is no folder of features at" in says(tmp_path / "none")
    assert "there are no features at" in says(tmp_path / "none.npy")
    assert "there are no features at" in says(tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    assert "there is no features.json in it" in says(tmp_path / "empty")
    (tmp_path / "empty" / "features.json").write_text(json.dumps({"format": 99}))
    assert "features of format 1" in says(tmp_path / "empty")
    np.save(tmp_path / "f.npy", ROWS)
    (tmp_path / "f.ids.txt").write_text("a\nb\n")
    assert "3 rows of features but 2 ids" in says(tmp_path / "f.npy")
    (tmp_path / "f.ids.txt").write_text("a\nb\na\n")
    assert "appear twice" in says(tmp_path / "f.npy")
    np.save(tmp_path / "f.npy", ROWS.astype(np.int64))
    assert "an array of int64" in says(tmp_path / "f.npy")
    (tmp_path / "f.npy").write_bytes(b"\x93NUMPY")
    assert "is not a complete .npy array" in says(tmp_path / "f.npy")
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    assert "is not a complete Parquet file" in says(tmp_path / "f.parquet")
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "f.parquet")
    assert 'has no column "id"' in says(tmp_path / "f.parquet")
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "f.parquet")
    assert "has 0 columns of lists" in says(tmp_path / "f.parquet")


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "f.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "f.ids.txt").write_text("a\n")
    with pytest.raises(ThresherError, match="is not a complete"):
        Features.open(tmp_path / "f.npy")
