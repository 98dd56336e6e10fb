"""File names, atomic writes and the cache folder.

Every write goes to a temporary name beside its target and is renamed into place, so that a reader
sees the old file, the new file or none, never an incomplete one.
"""

import contextlib
import errno
import glob
import json
import os
import platform
import secrets
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.errors import (
    AlreadyExistsError,
    InvalidValueError,
    NotFoundError,
    ThresherError,
    check_type,
)
from thresher.home_paths import with_home
from thresher.read_errors import DISK_FAILS, advice, unreadable


def home() -> Path:
    """Return the cache folder: $THRESHER_HOME, else thresher/ in the user's cache folder."""
    # A variable that is set to nothing counts as unset.
    folder = os.environ.get("THRESHER_HOME")
    try:
        if folder:
            return Path(folder).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "thresher"
    except RuntimeError:  # a container often runs as a user that is in no /etc/passwd
        what = "the cache folder is unknown, because this user has no home folder"
        raise NotFoundError(what, "set THRESHER_HOME to a folder") from None


def as_path(path: Path | str, parameter: str, fix: str = "") -> Path:
    """Return a path that a user gave, which may begin with `~/`, or raise InvalidTypeError."""
    check_type(path, (str, os.PathLike), parameter, "a path", fix)
    return Path(with_home(path))


def cached_pack(name: str) -> Path:
    """Return the folder of a pack in the cache."""
    return home() / "packs" / name


def user_error(error: OSError, path: Path) -> ThresherError | None:
    """Return the ThresherError for an error of writing to `path`; None if it is another kind."""
    if error.filename is not None and os.path.isfile(error.filename):  # perhaps not `path`
        refused = unreadable(os.fsdecode(error.filename), OSError())
        if refused is not None:
            return refused
    # numpy reports a full disk without an error number: "4096 requested and 0 written".
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or " requested and " in str(error):
        return ThresherError(f"no space left on the disk of {path}", "free some space")
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        with contextlib.suppress(NotFoundError):
            if path.is_relative_to(home()):
                what = f"no permission to write to the cache: {path}"
                return ThresherError(what, "set THRESHER_HOME to another folder")
        return ThresherError(f"no permission to write {path}", "choose another folder")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ThresherError("too many files are open", "raise the limit: `ulimit -n 4096`")
    if error.errno == errno.ENOENT:
        return NotFoundError(f"{error.filename or path} does not exist", "check the path")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidValueError(f"the file name {path.name[:40]}… is too long")
    if error.errno == errno.ELOOP:
        return InvalidValueError(f"{path} is a link that leads to itself", "check the path")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY):
        blocked = f"{path} cannot be written: a file or folder is in the way"
        return AlreadyExistsError(blocked, "choose another name")
    if error.errno in DISK_FAILS:
        what = f"{os.strerror(error.errno).lower()} while writing {path}"
        return ThresherError(what, advice(error.errno))
    return None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of writing to `path` that the user can fix into a ThresherError."""
    try:
        yield
    except ThresherError:  # some are also an OSError
        raise
    except OSError as error:
        reason = user_error(error, path)
        if reason is None:
            raise
        raise reason from error


@contextlib.contextmanager
def new_parents(path: Path) -> Iterator[None]:
    """Create the missing parent folders of `path`; remove them if the block fails."""
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()  # only if it is empty
        raise


def allocate(path: Path) -> None:
    """Reserve the disk space of a file that is to be filled through a memory map.

    Without it the file has holes, and a full disk ends the process with SIGBUS.
    """
    size = path.stat().st_size
    with open(path, "r+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
            return
        while block := file.read(1 << 20):  # macOS: writing fills the holes
            file.seek(-len(block), os.SEEK_CUR)
            file.write(block)


def _temporary(path: Path) -> Path:
    """Return a name to write to until `path` is complete; remove what killed processes left."""
    host = f"{zlib.crc32(platform.node().encode()):08x}"[:4]
    name = os.fsencode(path.name)[:200].decode(errors="ignore")  # a file name has at most 255
    for old in path.parent.glob(f".{glob.escape(name)}.{host}-*-*.tmp"):
        if not _runs(old.name.split("-")[-2]):
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink(missing_ok=True)
    return path.with_name(f".{name}.{host}-{os.getpid()}-{secrets.token_hex(3)}.tmp")


def _runs(process: str) -> bool:
    with contextlib.suppress(OSError):  # where there is no /proc
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"  # dead, and its parent has not noticed yet
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # it belongs to somebody else
        pass
    return True


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` if the block succeeds."""
    path = Path(path)
    with disk_errors(path), new_parents(path):
        temporary = _temporary(path)
        try:
            yield temporary
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


@contextlib.contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """Yield a temporary folder to fill; rename it to `path`, a new one, if the block succeeds."""
    path = Path(path)
    with disk_errors(path), new_parents(path):
        if path.exists():
            raise AlreadyExistsError(f"{path} exists already", "choose another name or remove it")
        temporary = _temporary(path)
        try:
            temporary.mkdir()
            yield temporary
            os.rename(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def scratch_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new, empty folder and remove it afterwards.

    Those of the same name that killed processes left are removed, too. `parent` is an existing
    folder; default: the system's folder for temporary files.
    """
    folder = _temporary((parent or Path(tempfile.gettempdir())) / f"thresher-{name}")
    with disk_errors(folder):
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write an indented JSON file atomically; NaN and infinity raise ValueError."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path | str, kind: str = "file") -> Any:
    """Read a JSON file; `kind` says what it should be, for messages."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no {kind} at {path}", "check the path") from None
    except (ValueError, RecursionError, OSError) as error:
        wrong = InvalidValueError(f"{path} is not a {kind}: it is not valid JSON")
        raise unreadable(path, error) or wrong from None


def check_format(data: Any, newest: int, what: str) -> None:
    """Refuse a file that a newer version of Thresher wrote.

    Args:
        data: The parsed file. Without a field `format` it is of version 1; anything but a dict is
            left to the caller's own checks.
        newest: The newest format version that the caller reads.
        what: The file, for messages.

    Raises:
        InvalidValueError: `format` is newer than `newest`, or not a version number.
    """
    version = data.get("format", 1) if isinstance(data, dict) else 1
    if type(version) is not int or version < 1:
        raise InvalidValueError(f"{what}: format must be a whole number above 0, got {version!r}")
    if version > newest:
        raise InvalidValueError(
            f"{what} was written by a newer version of Thresher "
            f"(format {version}, this one reads up to {newest})",
            "upgrade Thresher",
        )


RUN_FORMAT = 1
"""Version of a run's `run.json` and `result.json`, in their field `format`."""


def read_run_json(path: Path, kind: str) -> Mapping[str, Any]:
    """Read `run.json` or `result.json` of a run, which `kind` names for messages.

    Raises:
        NotFoundError: There is no such file.
        InvalidValueError: It is of a newer format, or does not hold the tables of a run.
    """
    data = read_json(path, kind)
    check_format(data, RUN_FORMAT, str(path))
    right = isinstance(data, dict)
    if right and path.name != "result.json":  # in which metrics of a command may have these names
        tables = [data.get("config"), data.get("data", {}), data.get("resolved", {})]
        right = all(isinstance(table, dict) for table in tables)
    if not right:
        raise InvalidValueError(f"{path} is not a {kind}: it is damaged")
    return data


class Inside:
    """The path of a fixed name inside the folder `root` of the object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, paths: Any, _: type | None = None) -> Path:
        return paths.root / self.name


@dataclass(frozen=True)
class PackPaths:
    """File names of a pack, and of one that is still being written."""

    root: Path
    meta = Inside("pack.json")

    @property
    def staging(self) -> Path:
        """Folder of an unfinished pack; it has no pack.json, so it cannot be opened."""
        return self.root.with_name(f".{self.root.name}.partial")


@dataclass(frozen=True)
class RunPaths:
    """File names of a training run."""

    root: Path
    metrics = Inside("metrics.jsonl")
    log = Inside("log.json")
    """Ids of the run at the services that it logs to."""
    model = Inside("model.safetensors")
    result = Inside("result.json")
    """Exists if the run is finished."""
    checkpoints = Inside("checkpoints")
    dynamics = Inside("dynamics.parquet")
    """Training dynamics per sample (EL2N, forgetting), if the run recorded them."""
    correct = Inside("correct.npy")
    """Which test samples the network predicts correctly: one bit each, in pack order."""
    output = Inside("output")
    """Folder that the command of a trial writes to: the value of {out}."""
    command_log = Inside("command.log")
    """Output of the command of a trial."""
    lock = Inside(".lock")

    @property
    def config(self) -> Path:
        """The configuration: `run.json`, or `config.json` in a folder of version 0.1.

        Folders of timm and transformers have a `config.json` too, with other content.
        """
        new, old = self.root / "run.json", self.root / "config.json"
        return old if old.is_file() and not new.exists() else new


@dataclass(frozen=True)
class SelectionPaths:
    """File names of a selection `S.parquet`."""

    table: Path

    @property
    def sidecar(self) -> Path:
        """Settings of the filter, and the fingerprint of the pack."""
        return self.table.with_suffix(".json")

    @property
    def overrides(self) -> Path:
        """Decisions by people."""
        return self.table.with_suffix(".overrides.jsonl")

    @property
    def copies(self) -> Path:
        """Near-copies, if the filter looked for them."""
        return self.table.with_suffix(".copies.arrow")


@dataclass(frozen=True)
class AuditPaths:
    """File names of an audit."""

    root: Path
    plan = Inside("plan.json")
    """The options; an interrupted audit resumes if they are the same."""
    pack = Inside("pack")
    """The images, if they were not a pack."""
    run = Inside("run")
    features = Inside("features")
    selection = Inside("selection.parquet")
    page = Inside("index.html")
    result = Inside("audit.json")
    """Exists if the audit is finished."""
    lock = Inside(".lock")


@dataclass(frozen=True)
class StudyPaths:
    """File names of a study."""

    root: Path
    definition = Inside("study.toml")
    comparisons = Inside("comparisons.jsonl")
    inputs = Inside("inputs.json")
    lock = Inside(".lock")
    steps = Inside("steps")
    trials = Inside("trials")
    report = Inside("report")
    running = Inside("running.json")
    """The running tasks; valid while the lock is held."""
    slurm_jobs = Inside("slurm/jobs.json")

    def trial(self, name: str) -> RunPaths:
        """Return the file names of a trial."""
        return RunPaths(self.trials / name)
