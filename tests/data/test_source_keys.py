"""The key of a source tells whether a packing can be resumed, and whether an audit still holds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from source_packs import ONE, packed

from made_images import picture
from thresher.auditing.audit import open_images
from thresher.data.sources.base import Block
from thresher.data.sources.protobuf import write_field
from thresher.data.sources.registry import open_source
from thresher.data.sources.tfrecord import TfRecord
from thresher.data.write import write_pack
from thresher.errors import ThresherError
from thresher.paths import AuditPaths

lmdb = pytest.importorskip("lmdb")
webdataset = pytest.importorskip("webdataset")
TFRecordWriter = pytest.importorskip("tfrecord.writer").TFRecordWriter


@pytest.mark.slow
@pytest.mark.parametrize("format", ["lmdb", "webdataset"])
def test_an_audit_notices_that_images_are_in_another_split(tmp_path: Path, format: str) -> None:
    """Only the names of the files counted, so that the audit went on with the old splits."""
    data, paths = tmp_path / "data", AuditPaths(tmp_path / "audit")
    for split in ("test", "train"):
        folder = data / split
        folder.mkdir(parents=True)
        if format == "webdataset":
            with webdataset.TarWriter(str(folder / "0.tar")) as writer:
                writer.write({"__key__": "k", "jpg": picture(0, 30, 20), "cls": 0})
            continue
        with lmdb.open(str(folder), map_size=1 << 20) as env, env.begin(write=True) as t:
            t.put(split.encode(), write_field(4, picture(0, 30, 30)) + write_field(7, 1))
    assert open_images(data, paths).meta.splits == {"train": 1, "test": 1}
    assert open_images(data, paths).meta.splits == {"train": 1, "test": 1}
    (data / "test").rename(data / "dev")
    with pytest.raises(ThresherError, match="has changed since the audit"):
        open_images(data, paths)


def test_a_packing_goes_on_only_if_labels_count_from_the_same_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class names end the search for a label 0 early: half of the labels were off by one."""
    (tmp_path / "records").mkdir()
    names, later = ["a", "b", "c"], [1, 2] * 500 + [0]
    for part, labels in enumerate((later, [1, 2, 2])):
        writer = TFRecordWriter(str(tmp_path / "records" / f"train-0000{part}-of-00002"))
        for n, label in enumerate(labels):
            writer.write(
                {
                    "image/encoded": (picture(0, 4, 4), "byte"),
                    "image/class/label": (label, "int"),
                    "image/class/text": (names[label].encode(), "byte"),
                    "image/filename": (f"{part}/{n}".encode(), "byte"),
                }
            )
        writer.close()
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    read = TfRecord.read

    def interrupted(source: TfRecord, chunk: str) -> Iterator[Block]:
        if chunk.startswith("train-00001"):
            raise KeyboardInterrupt
        return read(source, chunk)

    monkeypatch.setattr(TfRecord, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_pack(open_source(tmp_path / "records"), tmp_path / "pack", ONE)
    monkeypatch.undo()
    with pytest.raises(ThresherError, match=r"must be integers in \[0, 1,000,000\), got -1"):
        packed(tmp_path / "records", tmp_path / "pack", classes=tmp_path / "names.txt")
    assert packed(tmp_path / "records", tmp_path / "pack").labels.tolist() == [*later, 1, 2, 2]
