"""Worker processes of the pack writer start side by side, and import only what they need."""

from pathlib import Path

import pytest

from made_images import Meeting, Modules
from thresher.cli.data_pack import WriteConfig
from thresher.data.write import WriteOptions, write_pack

UNNEEDED = {
    "pandas",
    "pyarrow.compute",
    "thresher.cli.data_pack",
    "thresher.data.flip",
    "thresher.data.pack",
    "thresher.data.selection",
    "thresher.data.write",
    "torch",
    "tyro",
}


@pytest.mark.slow
def test_a_worker_starts_before_the_one_before_it_has_read_the_job(tmp_path: Path) -> None:
    (tmp_path / "started").mkdir()
    source = Meeting(tmp_path / "started")
    assert len(write_pack(source, tmp_path / "pack", WriteOptions(processes=2))) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack", "started"]


@pytest.mark.slow
def test_a_worker_of_the_command_does_not_import_the_command(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    config = WriteConfig(source="", out=tmp_path / "pack", processes=2)
    write_pack(Modules(tmp_path / "modules"), config.out, config)
    for chunk in ("0", "1"):
        imported = set((tmp_path / "modules" / chunk).read_text().split())
        assert "thresher.data.write_pool" in imported
        assert not UNNEEDED & imported
