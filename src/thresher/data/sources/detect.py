"""Which kind of source a path is, and the source for it."""

from pathlib import Path

from thresher.data.sources.base import Source
from thresher.errors import ThresherError, nearest
from thresher.paths import PackPaths

FORMATS = ("folder", "huggingface", "webdataset", "tfrecord", "lmdb", "hdf5", "npz")


def detect(where: str) -> str:
    """The format of what lies at `where`, by its name and by what it holds."""
    from thresher.data.sources.huggingface import is_saved_dataset
    from thresher.data.sources.tfrecord import NAMED, records_in

    path = Path(where)
    if where.startswith("hf:"):
        return "huggingface"
    if not path.exists():
        raise ThresherError(f"there is nothing at {where}", "check the path")
    if path.is_file():
        endings = {".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5", ".mdb": "lmdb"}
        if path.suffix.lower() in endings:
            return endings[path.suffix.lower()]
        if ".tar" in path.name.lower() or path.suffix == ".tgz":
            return "webdataset"
        if NAMED.match(path.name):
            return "tfrecord"
        raise ThresherError(
            f"{where} is of no kind that is known", f"say it with --format: {', '.join(FORMATS)}"
        )
    if PackPaths(path).meta.exists():
        raise ThresherError(f"{where} is a pack already", "use it as it is")
    if (path / "data.mdb").exists() or any(path.glob("*/data.mdb")):
        return "lmdb"
    if is_saved_dataset(path):
        return "huggingface"
    if any(path.glob("*.tar")) or any(path.glob("*.tar.*")):
        return "webdataset"
    if records_in(path):
        return "tfrecord"
    archives = sorted(path.glob("*.h5")) + sorted(path.glob("*.hdf5")) + sorted(path.glob("*.npz"))
    if len(archives) == 1 and not any(child.is_dir() for child in path.iterdir()):
        return detect(str(archives[0]))
    return "folder"


def open_source(
    where: str, format: str | None = None, name: str | None = None, classes: Path | None = None
) -> Source:
    """The source at `where`; `classes` names a file with a class name per line."""
    kind = format or detect(where)
    if kind not in FORMATS:
        raise ThresherError(f'there is no format "{kind}"', nearest(kind, FORMATS))
    path = Path(where)
    if kind != "huggingface" and not path.exists():
        raise ThresherError(f"there is nothing at {where}", "check the path")
    if classes is not None and kind in ("folder", "huggingface"):
        raise ThresherError(f"a {kind} brings its own class names", "leave --classes out")
    if kind == "folder":
        from thresher.data.sources.folder import Folder

        return Folder(path, name)
    if kind == "huggingface":
        from thresher.data.sources.huggingface import HuggingFace

        return HuggingFace(where, name)
    if kind == "webdataset":
        from thresher.data.sources.webdataset import WebDataset

        return WebDataset(path, name, classes)
    if kind == "tfrecord":
        from thresher.data.sources.tfrecord import TfRecord

        return TfRecord(path, name, classes)
    if kind == "lmdb":
        from thresher.data.sources.lmdb import Lmdb

        return Lmdb(path.parent if path.is_file() else path, name, classes)
    file = path if path.is_file() else next(p for p in sorted(path.iterdir()) if p.is_file())
    if kind == "hdf5":
        from thresher.data.sources.hdf5 import Hdf5

        return Hdf5(file, name, classes)
    from thresher.data.sources.npz import Npz

    return Npz(file, name, classes)
