"""The kinds of sources, found by name or by looking at a path.

Built-in sources and those of other packages (entry-point group `thresher.sources`) are listed in
`SOURCES`; `package.module:Class` names any other. `thresher.data.sources.base.Source` describes
what such a class must offer.
"""

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thresher.data.labels import class_names
from thresher.data.sources.base import Source
from thresher.data.sources.encoded import DESCRIPTION, EncodedSource
from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.paths import PackPaths, as_path
from thresher.plugins import Registry

_HERE = "thresher.data.sources"
SOURCES = Registry(
    "format",
    "thresher.sources",
    {
        "huggingface": f"{_HERE}.huggingface:HuggingFace",
        "lmdb": f"{_HERE}.lmdb:Lmdb",
        "imagenet": f"{_HERE}.imagenet:ImageNet",
        "webdataset": f"{_HERE}.webdataset:WebDataset",
        "tfrecord": f"{_HERE}.tfrecord:TfRecord",
        "hdf5": f"{_HERE}.hdf5:Hdf5",
        "npz": f"{_HERE}.npz:Npz",
        "folder": f"{_HERE}.folder:Folder",
    },
)
"""In the order in which built-in sources are tried; a folder is what nothing else recognises."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """How to read a source."""

    format: str | None = None
    """folder, imagenet, huggingface, webdataset, tfrecord, lmdb, hdf5, npz, a format of another
    package, or package.module:Class; default: detected."""
    name: str | None = None
    """The pack's name; default: the source's own."""
    classes: Path | None = None
    """A file with one class name per line, for formats that only hold numbers."""


def detect(where: str) -> str:
    """Return the format of a path or address."""
    if PackPaths(Path(where)).meta.exists():
        raise InvalidValueError(f"{where} is a pack already", "use it as it is")
    built_in = list(SOURCES.built_in)
    # Sources of other packages are asked first, since they are installed for a purpose.
    for name in [*(name for name in SOURCES.names() if name not in built_in), *built_in]:
        try:
            matches = getattr(SOURCES.load(name), "matches", None)
        except (ThresherError, ImportError) as error:
            _logger.warning("the source %s cannot be loaded: %s", name, error)
            continue
        if matches is not None and matches(where):
            return name
    if not Path(where).exists():
        raise NotFoundError(f"{where} does not exist", "check the path")
    raise InvalidValueError(
        f"the format of {where} is unknown", f"set `format` to one of {', '.join(SOURCES.names())}"
    )


def open_source(where: str | Path, options: SourceOptions | None = None) -> Source:
    """Open a file, a folder, or an address that a source understands, such as `hf:NAME`."""
    options = options or SourceOptions()
    where = str(where) if str(where).startswith("hf:") else str(as_path(where, "where"))
    path = Path(where)
    if path.exists() and not (path.is_file() or path.is_dir()):
        # Reading a FIFO could block for ever.
        raise InvalidValueError(f"{where} is neither a file nor a folder", "check the path")
    format = options.format or detect(where)
    source: Any = SOURCES.load(format)
    is_source = isinstance(source, type) and hasattr(source, "read")
    if not is_source:
        raise InvalidValueError(f"{format} is not a source: it must be a class with `read`")
    arguments: dict[str, Any] = {"name": options.name}
    if options.classes is not None:
        if "classes" not in inspect.signature(source).parameters:
            raise InvalidValueError(
                f"classes cannot be set for the format {format}, which has class names",
                parameter="classes",
            )
        arguments["classes"] = as_path(options.classes, "classes")
    opened: Source = source(where, **arguments)
    own = options.classes is not None and isinstance(opened, EncodedSource)
    if own and opened.classes != class_names(options.classes, list, where):
        raise InvalidValueError(
            f"classes cannot be set: {where} is an export that names its own",
            f"remove {DESCRIPTION} to read it without them",
            "classes",
        )
    return opened
