"""The page as a notebook widget: works where the browser cannot reach a port of the kernel."""

import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from thresher.app.messages import MessageServer, PageAnswer, PageRequest
from thresher.app.static_files import static_files
from thresher.app.workspace import Workspace

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src blob:; "
    "base-uri 'none'; form-action 'none'"
)
FRAME = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="color-scheme" content="light dark" />
    <meta http-equiv="Content-Security-Policy" content="{policy}" />
    <title>Thresher</title>
    <style nonce="{nonce}">{style}</style>
    <script nonce="{nonce}">{frame}</script>
    <script nonce="{nonce}" type="module">{page}</script>
  </head>
  <body>
    <div id="page"></div>
  </body>
</html>
"""


class SelectionWidget(anywidget.AnyWidget):
    """The page of a workspace in an output cell.

    The page's requests travel as messages of the widget, so they are answered while no cell runs.
    """

    _esm = (FOLDER / "widget.js").read_text()
    height = traitlets.Int(720).tag(sync=True)

    def __init__(self, workspace: Workspace, height: int) -> None:
        super().__init__(height=height)
        self._server = MessageServer(workspace, lambda event: self.send({"event": event}))
        self.on_msg(self._receive)

    def stop(self) -> None:
        """Stop to answer, and remove the page from the notebook."""
        self._server.stop()
        self.close()

    def _receive(self, _: Any, content: Any, buffers: Sequence[Any]) -> None:
        """Answer `{id, path, method, type}` and a body by `{id, status, type}` and a body."""
        try:
            id, path = str(content["id"]), str(content["path"])
            method, media_type = str(content["method"]), str(content["type"])
        except (TypeError, KeyError):
            logger.warning(f"the notebook sent a message that is not a request: {content!r:.200}")
            return

        def send(answer: PageAnswer) -> None:
            self.send({"id": id, "status": answer.status, "type": answer.media_type}, [answer.body])

        if path == "frame":
            send(PageAnswer(200, "text/html", frame_html().encode()))
        else:
            body = b"".join(bytes(buffer) for buffer in buffers)
            self._server.request(PageRequest(path, method, media_type, body), send)


def frame_html() -> str:
    """Return the page as one document; its scripts and style are allowed by a fresh nonce."""
    files, nonce = static_files(), secrets.token_urlsafe(18)
    return FRAME.format(
        nonce=nonce,
        policy=POLICY.format(nonce=nonce),
        style=files["assets/index.css"].decode(),
        frame=(FOLDER / "frame.js").read_text(),
        # In a document, this text would end the script. It occurs in strings only.
        page=files["assets/page.js"].decode().replace("</script", "<\\/script"),
    )
