"""`thresher view`: review a selection in the browser."""

import logging
import os
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from thresher.app.config import ServerConfig
from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack, ensure_packs_of_selections
from thresher.errors import InvalidValueError
from thresher.options import option

if TYPE_CHECKING:
    from thresher.app.workspace import Workspace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ViewConfig(ServerConfig):
    selections: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """SEL.parquet, several to compare, or the folder of a study."""
    data: str | None = option(None)
    """Pack: a folder or a name in the cache. Default: the pack named by the selection."""
    export: Path | None = option(None)
    """Write the page with its data as plain files to this new folder instead of serving it."""
    browser: bool = option(True)
    """Open the page in a browser."""


def view(config: ViewConfig) -> Outcome:
    """Show the map and the images of a selection; try filter settings; keep, drop or relabel.

    Serves a page on this machine until Ctrl-C and prints its address, which contains a secret
    token. Decisions are appended to a log beside the selection and apply whenever it is loaded.
    With --export the page is written as plain files for any web server, read-only.
    """
    from thresher.app.workspace import Workspace, find_selections
    from thresher.data.pack import Pack

    if not config.selections:
        raise InvalidValueError("no selection given", "type `thresher view SEL.parquet`")
    paths = find_selections(config.selections)
    ensure_pack(config.data) if config.data else ensure_packs_of_selections(paths)
    workspace = Workspace(paths, Pack.open(config.data) if config.data else None)
    workspace.view()
    if config.export is not None:
        return _export(workspace, config.export)
    return _serve(workspace, config)


def _export(workspace: "Workspace", folder: Path) -> Outcome:
    from thresher.app.export import export_page

    result = export_page(workspace, folder)
    return Outcome(
        asdict(result),
        f"{result.folder}: {result.files:,} files, {result.bytes / 1e6:,.1f} MB; copy it to any "
        f"web server (to try it: python -m http.server -d {shlex.quote(str(result.folder))})",
    )


def _serve(workspace: "Workspace", config: ViewConfig) -> Outcome:
    import webbrowser

    from thresher.app.server import create_server

    server = create_server(workspace, config)
    if not config.is_local:
        logger.warning(
            "listening on %s: anyone who can reach this machine and knows the address can see "
            "these images and change decisions",
            config.host,
        )

    def serve() -> None:
        if config.browser:
            webbrowser.open(server.url)
        server.run()

    selection = workspace.view()
    lines = [f"{selection.path}: {len(selection):,} samples of {selection.pack.name}", server.url]
    if not config.is_local or "SSH_CONNECTION" in os.environ:
        command, address = server.tunnel
        lines.append(f"From your own machine: {command}\nthen open {address}")
    text = "\n".join([*lines, "Press Ctrl-C to stop."])
    return Outcome({"url": server.url, "selections": workspace.names}, text, serve)
