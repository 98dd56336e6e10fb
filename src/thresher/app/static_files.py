"""The built page: the files that Vite wrote to `static/`, read once and served by name."""

import mimetypes
from functools import lru_cache
from pathlib import Path

from thresher.errors import NotFoundError

STATIC = Path(__file__).parent / "static"
LIVE_MARK = 'name="thresher-source" content="live"'
STATIC_MARK = 'name="thresher-source" content="static"'


@lru_cache(maxsize=1)
def static_files() -> dict[str, bytes]:
    """Return the content of every file of the page by its path below `static/`."""
    paths = [path for path in sorted(STATIC.rglob("*")) if path.is_file()]
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in paths}
    if "index.html" not in files:
        raise NotFoundError(
            "the page is not built", "in a checkout run `cd web && npm ci && npm run build`"
        )
    return files


def media_type(name: str) -> str:
    """Return the media type of a file of the page."""
    if name.endswith(".js"):  # which some systems map to text/plain: browsers refuse that
        return "text/javascript"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
