"""The map in a notebook: an `<iframe>` on a server that runs as long as the kernel does."""

from dataclasses import dataclass

from thresher.app.desk import Desk
from thresher.app.serve import Served, prepare
from thresher.data.selection import Selection
from thresher.errors import ThresherError

_running: dict[str, Served] = {}


@dataclass(frozen=True)
class Frame:
    """What a notebook displays; `url` opens the same page in a window of its own."""

    url: str
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{self.url}" title="Thresher: map of a selection" width="100%" '
            f'height="{int(self.height)}" style="border:0" allow="clipboard-write"></iframe>'
        )


def show(selection: Selection, height: int = 720) -> Frame:
    """Serve a saved selection from this process and give the frame that shows it.

    The page reads the file and its log: decisions made in it are seen by the next
    `Selection.load`. A second call for the same file uses the same server.
    """
    if selection.path is None:
        raise ThresherError("the selection is not saved yet", "save it first: `.save(PATH)`")
    key = str(selection.path.resolve())
    if key not in _running:
        served = prepare(Desk([selection.path]), embed=True)
        served.start()
        _running[key] = served
    return Frame(_running[key].url, height)


def close() -> None:
    """Stop every server that `show` started."""
    while _running:
        _running.popitem()[1].stop()
