"""The built page: the files that Vite wrote to `static/`, read once and served by name."""

import mimetypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from thresher.errors import NotFoundError

STATIC = Path(__file__).parent / "static"
LIVE_MARK = 'name="thresher-source" content="live"'
STATIC_MARK = 'name="thresher-source" content="static"'


@dataclass(frozen=True)
class StaticFile:
    """A file of the page."""

    data: bytes
    media_type: str


@lru_cache(maxsize=1)
def static_files() -> dict[str, StaticFile]:
    """Return every file of the page by its path below `static/`."""
    files = {}
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if path.suffix == ".js":
                # Some systems map .js to text/plain, which browsers refuse with `nosniff`.
                media_type = "text/javascript"
            files[path.relative_to(STATIC).as_posix()] = StaticFile(path.read_bytes(), media_type)
    if "index.html" not in files:
        raise NotFoundError(
            "the page is not built", "in a checkout run `cd web && npm ci && npm run build`"
        )
    return files
