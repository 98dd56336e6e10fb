"""`thresher data get`: a known data set from its origin into the cache, once."""

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path

from thresher.data import download
from thresher.data.pack import Pack
from thresher.data.sources.base import Source
from thresher.data.sources.known import FINGERPRINTS, NAMES
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError, nearest
from thresher.paths import PackPaths, cached_pack, disk_errors
from thresher.progress import say


def get(name: str, file: Path | None = None, options: WriteOptions | None = None) -> Pack:
    """The pack of a known data set, made now if the cache has none.

    `file` is where its images are (an archive or a folder); without it they come from where they
    are published. Several processes may call this at once: one works, the others wait for it.
    """
    if name not in NAMES:
        raise ThresherError(f'no data set is known as "{name}"', nearest(name, NAMES))
    out = cached_pack(name)
    with _one_at_a_time(out):
        if not PackPaths(out).meta.exists():
            fetched: list[Path] = []
            source = _source(name, file, fetched)
            write_pack(source, out, options, expect=FINGERPRINTS.get(name))
            for archive in fetched:
                archive.unlink(missing_ok=True)
    return Pack.open(out)


def offer(name: str) -> Path | None:
    """The folder of the pack `name`, got if the user wishes so; None where nobody can be asked.

    `digits` ships with scikit-learn and is made without a question.
    """
    if name == "digits":
        return get(name).root
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    say(f'The data set "{name}" is not in the cache ({cached_pack(name)}). Get it now? [Y/n]')
    if sys.stdin.readline().strip().lower() not in ("", "y", "yes"):
        return None
    return get(name).root


def _source(name: str, file: Path | None, fetched: list[Path]) -> Source:
    if file is not None and not file.exists():
        raise ThresherError(f"there is no file {file}", "check the path after --from")
    if name == "digits":
        if file is not None:
            raise ThresherError("digits ships with scikit-learn", "leave --from out")
        from thresher.data.sources.digits import Digits

        return Digits()
    if name == "fashion-mnist":
        from thresher.data.sources.fashion_mnist import FashionMnist, installed

        folder = file or installed()
        if folder is None:
            raise ThresherError(
                "Fashion-MNIST is not installed here",
                "install Debian's dataset-fashion-mnist, or name the folder of its four idx files "
                "with --from",
            )
        return FashionMnist(folder)
    from thresher.data.sources.cifar import Cifar

    if file is None:
        file = download.cifar(name)
        fetched.append(file)
    return Cifar(name, file)


@contextlib.contextmanager
def _one_at_a_time(out: Path) -> Iterator[None]:
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(out.with_name(f".{out.name}.lock"), "w") as lock:
            # A file system without locks must not stop a single user.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
