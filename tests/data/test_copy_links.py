"""The near-copies of a selection on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from thresher.data.copy_links import CopyLinks
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import SelectionPaths

LINKS = CopyLinks(["b", "c"], ["a", "test/1"], np.array([0.5, 1.0000001], np.float32), "cosine")


def selection() -> Selection:
    return Selection(
        ids=["a", "b", "c"],
        labels=np.array([0, 0, 1]),
        keep=np.array([True, False, True]),
        score=np.zeros(3, np.float32),
        reason=["", "like a", ""],
        fingerprint="f" * 8,
        copies=LINKS,
    )


def test_links_are_stored_beside_the_selection(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    selection().save(path)
    links = Selection.load(path).copies
    assert links is not None
    assert (links.ids, links.others, links.measure) == (LINKS.ids, LINKS.others, "cosine")
    assert links.similarity.tolist() == [0.5, 1.0]
    meta = pa.ipc.open_file(SelectionPaths(path).copies).schema.metadata
    assert meta[b"format"] == b"1"


def test_a_left_over_file_does_not_join_another_selection(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    selection().save(path)
    path.unlink()  # as if the process had been killed before it wrote the table
    replace(selection(), copies=None, path=None).save(path)
    assert Selection.load(path).copies is None
    assert not SelectionPaths(path).copies.exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"nonsense", "is damaged; remove it to go on without"),
        ({"format": "2", "fingerprint": "f" * 8, "measure": "m"}, "newer version of Thresher"),
        ({"format": "1", "fingerprint": "other", "measure": "m"}, "another pack; remove it"),
        ({"format": "one", "fingerprint": "f" * 8, "measure": "m"}, "is damaged"),
        ({"format": "1", "fingerprint": "f" * 8}, "is damaged"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes | dict[str, str], why: str
) -> None:
    path = tmp_path / "s.parquet"
    selection().save(path)
    file = SelectionPaths(path).copies
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        table = pa.table({"id": ["a"], "other": ["b"], "similarity": [1.0]})
        with pa.ipc.new_file(file, table.schema.with_metadata(content)) as writer:
            writer.write_table(table)
    with pytest.raises(ThresherError, match=why):
        Selection.load(path)
