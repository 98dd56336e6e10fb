"""Files that the system does not let us read: reported as such, not as damaged.

Reading the first byte of a process's own memory fails with EIO, for root too. That is what a disk
does that fails.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from thresher.csv_table import read_csv_table
from thresher.data.copy_links import CopyLinks
from thresher.data.digest import file_sha256
from thresher.data.ids import read_id_list
from thresher.data.labels import class_names
from thresher.data.meta import ShardMeta
from thresher.data.overrides import OverrideLog
from thresher.data.selection_file import read_files
from thresher.data.shard import map_shard
from thresher.data.sources.cifar import Cifar
from thresher.data.sources.fashion_mnist import read_idx
from thresher.data.sources.folder import Folder
from thresher.data.sources.hdf5 import Hdf5
from thresher.data.sources.imagenet import _members
from thresher.data.sources.lmdb import _opened
from thresher.data.sources.npz import Npz
from thresher.data.sources.webdataset import grouped
from thresher.errors import ThresherError, UnreadableError
from thresher.models import weights
from thresher.models.features import Features
from thresher.paths import SelectionPaths, disk_errors, read_json
from thresher.read_errors import unreadable
from thresher.scaling.catalog import load_cluster
from thresher.select.filters.listed import ListFilter
from thresher.study.reading import load
from thresher.study.status import Failures
from thresher.training import checkpoint
from thresher.training.config import file_options

MEMORY = "/proc/self/mem"

READERS: dict[str, Callable[[Path], object]] = {
    "x.json": read_json,
    "table.csv": read_csv_table,
    "ids.txt": read_id_list,
    "list.parquet": lambda path: ListFilter(file=path).fit(np.zeros((2, 2)), np.zeros(2, int)),
    "options.toml": file_options,
    "study.toml": load,
    "cluster.toml": load_cluster,
    "classes.txt": lambda path: class_names(path, list, "here"),
    "w.safetensors": weights.read,
    "w.pt": weights.read,
    "step-1.safetensors": checkpoint.read,
    "x.npy": lambda path: Features.from_array(path, ["a"]),
    "x.parquet": Features.from_array,
    "00000.arrow": lambda p: map_shard(p.parent, ShardMeta(p.name, 1, 0, ""), (8, 8, 1)),
    "s.parquet": lambda path: read_files(SelectionPaths(path)),
    "s.copies.arrow": lambda path: CopyLinks.load(path, ""),
    "train.idx": read_idx,
    "a.tar": lambda path: list(grouped(path, frozenset(["jpg"]))),
    "a.tar.gz": lambda path: Cifar("cifar10", path),
    "train.tar": _members,
    "x.npz": Npz,
    "x.h5": Hdf5,
    "data.mdb": lambda path: _opened(path.parent),
    "s.overrides.jsonl": lambda path: OverrideLog(path).read(),
    "errors/trial.jsonl": lambda path: Failures(path.parent.parent).history("trial"),
    "shard.arrow": file_sha256,
    # It is not left out as broken: the pack would be another one on another day.
    "1.png": lambda path: list(Folder(path.parent.parent).read("0:1")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_disk_that_fails_is_not_a_damaged_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "images" / "cat" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(MEMORY)
    with pytest.raises(UnreadableError, match=r"cannot be read: input/output error; its disk"):
        READERS[name](path)


@contextlib.contextmanager
def _nobody() -> Iterator[None]:
    """Read as a user without rights, who owns nothing; also where root runs the tests."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike that of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_the_owner_of_a_file_without_permission_is_named(open_folder: Path) -> None:
    file, hidden = open_folder / "a.json", open_folder / "closed" / "b.json"
    file.touch(mode=0o600)
    hidden.parent.mkdir(mode=0o700)
    hidden.touch()
    messages = []
    with _nobody():
        for path in (file, hidden):
            with pytest.raises(UnreadableError) as error:
                read_json(path)
            messages.append(str(error.value))
    ask = "ask root for it: `chmod a+r"
    assert messages == [
        f"no permission to read {file}, which belongs to root; {ask}`",
        f"no permission to read {hidden}, in a folder of root: {hidden.parent}; {ask}x`",
    ]


def test_what_can_be_read_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.touch()
    os.mkfifo(tmp_path / "pipe")
    for path in (file, tmp_path, tmp_path / "pipe", tmp_path / "missing", file / "below"):
        assert unreadable(path, ValueError()) is None
        assert unreadable(path, OSError()) is None
    assert unreadable(file, FileNotFoundError(errno.ENOENT, "", str(file))) is None


def test_reading_inside_of_writing_is_named_as_reading(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.symlink_to(MEMORY)
    with pytest.raises(ThresherError, match="while writing"), disk_errors(tmp_path / "out"):
        raise OSError(errno.ESTALE, "")
    with pytest.raises(UnreadableError, match=f"{source} cannot be read"), disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, "", str(source))
