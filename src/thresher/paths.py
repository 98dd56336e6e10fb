"""Who owns which file name, how files are written, and where the cache lies.

Every write goes to a temporary name beside its target and is renamed into place, so that a reader
sees the old file, the new one or none, and never a half of one.
"""

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError


def home() -> Path:
    """The cache folder: $THRESHER_HOME, else thresher/ under the user's cache folder."""
    if "THRESHER_HOME" in os.environ:
        return Path(os.environ["THRESHER_HOME"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "thresher"


def cached_pack(name: str) -> Path:
    """Where `thresher data get NAME` puts its pack."""
    return home() / "packs" / name


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A full disk or a folder one may not write is the user's to mend: say so in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ThresherError(f"no space left on the disk of {path}", "free some room") from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise ThresherError(f"{path} may not be written", "choose another folder") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise ThresherError(
                f"{path} cannot be made: a file stands in its way", "choose another name"
            ) from error
        raise


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(3)}.tmp")


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Give a temporary path to write to; rename it to `path` when the block ends well."""
    path = Path(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Give a temporary folder to fill; rename it to `path`, which must not exist, at the end."""
    path = Path(path)
    if path.exists():
        raise ThresherError(f"{path} exists already", "choose another name or remove it")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path)
        temporary.mkdir()
        try:
            yield temporary
            os.rename(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """JSON, indented, keys in the order given; NaN and infinity are refused (they are not JSON)."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path | str, kind: str = "file") -> Any:
    """Read a JSON artifact; a missing or broken one is named, with what it should have been."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ThresherError(f"there is no {kind} at {path}", "check the path") from None
    except (json.JSONDecodeError, UnicodeDecodeError, IsADirectoryError, NotADirectoryError):
        raise ThresherError(f"{path} is not a {kind}: it does not parse as JSON") from None


@dataclass(frozen=True)
class PackPaths:
    """The file names of a pack, and of one that is still being written."""

    root: Path

    @property
    def meta(self) -> Path:
        return self.root / "pack.json"

    @property
    def staging(self) -> Path:
        """Where a pack grows until it is whole; it holds no pack.json, so nothing opens it."""
        return self.root.with_name(f".{self.root.name}.partial")


@dataclass(frozen=True)
class RunPaths:
    """The file names of a training run."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def result(self) -> Path:
        """Its existence says that the run is finished."""
        return self.root / "result.json"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def dynamics(self) -> Path:
        """Per-sample training dynamics (EL2N, forgetting), when the run recorded them."""
        return self.root / "dynamics.parquet"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"


@dataclass(frozen=True)
class SelectionPaths:
    """A selection `S.parquet` and what lies beside it."""

    table: Path

    @property
    def sidecar(self) -> Path:
        return self.table.with_suffix(".json")

    @property
    def overrides(self) -> Path:
        return self.table.with_suffix(".overrides.jsonl")


@dataclass(frozen=True)
class StudyPaths:
    """The file names of a study."""

    root: Path

    @property
    def definition(self) -> Path:
        return self.root / "study.toml"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def steps(self) -> Path:
        return self.root / "steps"

    @property
    def trials(self) -> Path:
        return self.root / "trials"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def trial(self, name: str) -> RunPaths:
        return RunPaths(self.trials / name)
