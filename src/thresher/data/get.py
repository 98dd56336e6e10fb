"""Get a known data set from its origin and pack it into the cache, once."""

import logging
from pathlib import Path

from thresher.data import download
from thresher.data.pack import Pack
from thresher.data.sources.base import Source
from thresher.data.sources.known import FINGERPRINTS, NAMES
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import InvalidValueError, NotFoundError, nearest
from thresher.locks import exclusive_lock
from thresher.paths import PackPaths, cached_pack

logger = logging.getLogger(__name__)


def get(name: str, file: Path | None = None, options: WriteOptions | None = None) -> Pack:
    """Return the pack of a known data set; make it if it is not in the cache.

    Several processes may call this at once: one makes the pack, the others wait for it.

    Args:
        name: One of `thresher.data.sources.known.NAMES`.
        file: Archive or folder with the images; by default they are downloaded, if need be. It is
            not read if the pack is in the cache.
        options: How to write the pack.

    Example:
        >>> get("digits").info().samples
        1797
    """
    if name not in NAMES:
        raise InvalidValueError(f'unknown data set "{name}"', nearest(name, NAMES))
    out = cached_pack(name)
    lock = out.with_name(f".{out.name}.lock")
    if PackPaths(out).meta.exists():  # the cache of others may be read-only: no lock
        if file is not None:
            logger.warning("%s is in the cache already (%s): %s was not read", name, out, file)
        return Pack.open(out)
    with exclusive_lock(lock, f"another process is getting {name}", wait=True):
        if not PackPaths(out).meta.exists():
            _make(name, file, out, options)
    return Pack.open(out)


def _make(name: str, file: Path | None, out: Path, options: WriteOptions | None) -> None:
    if file is not None and not file.exists():
        raise NotFoundError(f"{file} does not exist", "check the path")
    downloaded = None
    source: Source
    if name == "digits":
        from thresher.data.sources.digits import Digits

        if file is not None:
            raise InvalidValueError("digits ships with scikit-learn and is not read from a file")
        source = Digits()
    elif name == "fashion-mnist":
        from thresher.data.sources.fashion_mnist import FashionMnist

        source = FashionMnist(file)
    else:
        from thresher.data.sources.cifar import Cifar

        if file is None:
            file = downloaded = download.cifar(name)
        source = Cifar(name, file)
    write_pack(source, out, options, expect=FINGERPRINTS.get(name))
    if downloaded is not None:
        downloaded.unlink(missing_ok=True)
