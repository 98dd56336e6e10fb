"""The built page: the files that Vite wrote into `static/`, read once and served by name."""

import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from thresher.errors import ThresherError

STATIC = Path(__file__).parent / "static"
LIVE_MARK = 'name="thresher-source" content="live"'
STATIC_MARK = 'name="thresher-source" content="static"'


@dataclass(frozen=True)
class File:
    data: bytes
    media_type: str


@lru_cache(maxsize=1)
def files() -> dict[str, File]:
    """Every file of the page by its path under `static/`; nothing else can be asked for."""
    found = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if path.suffix == ".js":
                # Some systems' tables say text/plain, which a browser told `nosniff` refuses.
                kind = "text/javascript"
            found[path.relative_to(STATIC).as_posix()] = File(path.read_bytes(), kind)
    if "index.html" not in found:
        raise ThresherError(
            "the page is not built", "in a checkout: `cd web && npm ci && npm run build`"
        )
    return found
