"""The page in a notebook: an `<iframe>` on a server in the kernel's process."""

from dataclasses import dataclass

from thresher.app.server import PageServer, create_server
from thresher.app.workspace import Workspace
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError

_servers: dict[str, PageServer] = {}


@dataclass(frozen=True)
class NotebookFrame:
    """A page that Jupyter displays inline."""

    url: str
    """Opens the same page in a browser window."""
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{self.url}" title="Thresher: map of a selection" width="100%" '
            f'height="{int(self.height)}" style="border:0" allow="clipboard-write"></iframe>'
        )


def show(selection: Selection, height: int = 720) -> NotebookFrame:
    """Serve a saved selection from this process and return the frame that displays it.

    The page reads and writes the files of the selection: the next `Selection.load` sees the
    decisions made in it. A second call for the same file reuses the server.
    """
    if selection.path is None:
        raise InvalidValueError("the selection is not saved", "call `.save(PATH)` first")
    key = str(selection.path.resolve())
    if key not in _servers:
        server = create_server(Workspace([selection.path]), embed=True)
        server.start()
        _servers[key] = server
    return NotebookFrame(_servers[key].url, height)


def close() -> None:
    """Stop every server that `show` started."""
    while _servers:
        _servers.popitem()[1].stop()
