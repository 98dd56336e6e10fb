"""The page in a notebook: a widget, or an `<iframe>` on a server in the kernel's process."""

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thresher.app.server import PageServer, create_server
from thresher.app.workspace import FileStamp, Workspace, file_stamp
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError, NotFoundError

if TYPE_CHECKING:
    from thresher.app.widget import SelectionWidget

LOCAL_ONLY = (
    "This frame works if the notebook runs on this machine; for a remote Jupyter or VS Code "
    "run pip install 'thresher-ml[notebook]' and restart the kernel."
)

_servers: dict[str, PageServer] = {}
_widgets: dict[str, "SelectionWidget"] = {}
_versions: dict[str, FileStamp] = {}
"""Which file each of them has read: a selection may be made again under the same name."""


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
            f"<p>{LOCAL_ONLY}</p>"
        )


def show(selection: Selection, height: int = 720) -> "SelectionWidget | NotebookFrame":
    """Return the page of a saved selection, for display in a notebook.

    With the package anywidget it is a widget, whose requests travel through the notebook. Without
    it, it is a frame on a server in this process, which the browser must reach at 127.0.0.1.

    The page reads and writes the files of the selection: the next `Selection.load` sees the
    decisions made in it. A second call for the same file reuses the server. If the file was made
    again meanwhile, the page of the old one is closed.
    """
    if selection.path is None:
        raise InvalidValueError("the selection is not saved", "call `.save(PATH)` first")
    key = str(selection.path.resolve())
    if not selection.path.is_file():
        raise NotFoundError(f"there is no selection at {key}", "call `.save(PATH)` first")
    version = file_stamp(selection.path)
    if _versions.setdefault(key, version) != version:
        _stop(key)
        _versions[key] = version
    if importlib.util.find_spec("anywidget") is None:
        if key not in _servers:
            server = create_server(Workspace([selection.path]), embed=True)
            server.start()
            _servers[key] = server
        return NotebookFrame(_servers[key].url, height)
    from thresher.app.widget import SelectionWidget

    if key not in _widgets:
        _widgets[key] = SelectionWidget(Workspace([selection.path]), height)
    _widgets[key].height = height
    return _widgets[key]


def close() -> None:
    """Stop every server and widget that `show` started."""
    for key in {*_servers, *_widgets}:
        _stop(key)


def _stop(key: str) -> None:
    for page in (_servers.pop(key, None), _widgets.pop(key, None)):
        if page is not None:
            page.stop()
