"""`Pack.verify` compares every field of pack.json with the images."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_images import class_folder
from thresher.data.pack import Pack
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack

Edit = Callable[[dict[str, Any]], object]
EDITS: dict[str, Edit] = {
    "fingerprint": lambda meta: meta.update(fingerprint="0" * 32),
    "splits": lambda meta: meta.update(splits={"train": 1000, "test": 797}),
    "mean": lambda meta: meta.update(mean=[meta["mean"][0] + 1e-3]),
    "std": lambda meta: meta.update(std=[meta["std"][0] * 1.01]),
    "classes": lambda meta: meta["classes"].reverse(),
    "name": lambda meta: meta.update(name="other"),
    "source": lambda meta: meta.update(source="somewhere else"),
    "broken": lambda meta: meta.update(broken=["digits/0001"]),
}


def _edited(pack: Path, out: Path, edit: Edit) -> Pack:
    shutil.copytree(pack, out)
    meta = json.loads((out / "pack.json").read_text())
    edit(meta)
    (out / "pack.json").write_text(json.dumps(meta))
    return Pack.open(out)


@pytest.mark.parametrize("field", EDITS)
def test_an_edited_field_is_named(tmp_path: Path, digits_copy: Path, field: str) -> None:
    assert Pack.open(digits_copy).verify() == []
    assert _edited(digits_copy, tmp_path / "edited", EDITS[field]).verify() == [field]


def test_a_label_outside_the_class_list_is_reported(tmp_path: Path, digits_copy: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        del meta["classes"][5:], meta["checksums"]

    (wrong,) = _edited(digits_copy, tmp_path / "edited", edit).verify()
    assert wrong.startswith("classes (label of sample")


def test_a_pack_of_an_older_version_has_no_checksums(tmp_path: Path, digits_copy: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        del meta["checksums"]

    assert _edited(digits_copy, tmp_path / "edited", edit).verify() == []


def test_encoded_images_are_decoded(tmp_path: Path) -> None:
    class_folder(tmp_path / "images")
    pack = write_pack(Folder(tmp_path / "images"), tmp_path / "pack")
    assert pack.image_shape is None
    assert pack.verify() == []
    edited = _edited(pack.root, tmp_path / "edited", EDITS["fingerprint"])
    assert edited.verify() == ["fingerprint"]


def test_the_command_names_the_field(thresher: Any, tmp_path: Path, digits_copy: Path) -> None:
    _edited(digits_copy, tmp_path / "edited", EDITS["splits"])
    done = thresher("data", "verify", tmp_path / "edited")
    assert done.returncode == 2
    assert "pack.json does not match the images: splits" in done.stderr


@pytest.fixture(scope="module")
def digits_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits, written now: the cache may hold a pack of an older version."""
    from thresher.data.sources.digits import Digits

    return write_pack(Digits(), tmp_path_factory.mktemp("digits") / "pack").root
