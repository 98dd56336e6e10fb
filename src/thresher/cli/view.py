"""`thresher view`: look at the map and overrule the filter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from thresher.cli.commands import Outcome
from thresher.errors import ThresherError


@dataclass(frozen=True)
class View:
    selections: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """SEL.parquet, two or more to compare, or a study's folder."""
    data: str = ""
    """The pack: a folder or a name in the cache. Default: the one that the selection names."""
    export: Path | None = None
    """Write the page with its data as plain files into this new folder, and do not serve."""
    host: str = "127.0.0.1"
    """Address to listen on. Anything but this machine's own lets others reach your images."""
    port: int = 0
    """Port to listen on; 0 takes any free one."""
    browser: bool = True
    """Open the page in a browser."""


def view(config: View) -> Outcome:
    """Look at a selection: its map, its images, the filter's knobs; keep or drop by hand.

    Serves a page on this machine until Ctrl-C and prints its address, which holds a secret token.
    What you decide is appended beside the selection and counts whenever it is loaded. With
    --export the page is written as plain files instead, read-only, for any web server.
    """
    from thresher.app.desk import Desk, find
    from thresher.data.pack import Pack

    if not config.selections:
        raise ThresherError("no selection is named", "thresher view SEL.parquet")
    desk = Desk(find(list(config.selections)), Pack.open(config.data) if config.data else None)
    desk.viewed()
    if config.export is not None:
        from thresher.app.export import export

        written = export(desk, config.export)
        return Outcome(
            written,
            f"{written['folder']}: {written['files']:,} files, {written['bytes'] / 1e6:,.1f} MB; "
            f"put it on any web server (to try: python -m http.server -d {written['folder']})",
        )
    return _serve(desk, config)


def _serve(desk: object, config: View) -> Outcome:
    import webbrowser

    from thresher.app.desk import Desk
    from thresher.app.serve import LOCAL, prepare
    from thresher.progress import say

    assert isinstance(desk, Desk)
    served = prepare(desk, config.host, config.port)
    if config.host not in (LOCAL, "localhost", "::1"):
        say(
            f"thresher: warning: listening on {config.host}: whoever can reach this machine and "
            "has the address can see these images and overrule the filter"
        )

    def serve() -> None:
        if config.browser:
            webbrowser.open(served.url)
        served.run()

    viewed = desk.viewed()
    return Outcome(
        {"url": served.url, "selections": desk.names},
        f"{viewed.path}: {len(viewed):,} samples of {viewed.pack.name}\n"
        f"{served.url}\nCtrl-C stops it.",
        serve,
    )
