"""Write down the drawing procedures that regl would make from text at run time.

regl calls `Function` on texts that it composes; the page's content policy forbids that, rightly.
For one page the texts are always the same, so this script opens the built page once with the
policy off, lets it tell which texts it had no procedure for, and writes them as a module. Run it
after changing the version of regl or regl-scatterplot, with the old table emptied, then build:

    echo "export const procedures = {};" > web/src/map/regl-procedures.js
    (cd web && npm run build) && python tools/regl_procedures.py && (cd web && npm run build)
"""

import tempfile
from pathlib import Path

import numpy as np

from thresher.app.server import create_server
from thresher.app.workspace import Workspace
from thresher.data.pack import Pack
from thresher.data.selection import Selection

OUT = Path(__file__).parents[1] / "web" / "src" / "map" / "regl-procedures.js"
HEAD = """\
// Made by tools/regl_procedures.py: what regl composes for this page, by the hash of its text.
export const procedures = {
"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        served = create_server(Workspace([_selection(Path(folder) / "s.parquet")]))
        with served.in_background() as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            page = browser.new_context(bypass_csp=True).new_page()
            page.goto(url)
            page.wait_for_selector(".map[data-drawn]")
            missing = page.evaluate("globalThis.reglMissing ?? {}")
            browser.close()
    if not missing:
        print("nothing is missing: the table is complete")
        return
    print(f"{len(missing)} procedures written to {OUT}")
    entries = [_entry(key, **found) for key, found in sorted(missing.items())]
    OUT.write_text(HEAD + "".join(entries) + "};\n")


def _entry(key: str, names: list[str], text: str) -> str:
    body = "\n".join(line for line in text.splitlines() if line.strip())
    return f'"{key}": function ({", ".join(names)}) {{\n{body}\n}},\n'


def _selection(path: Path) -> Path:
    pack = Pack.open("digits")
    train = pack.indices("train")[:50]
    random = np.random.default_rng(0)
    Selection(
        ids=[pack.ids[int(n)].as_py() for n in train],
        labels=pack.labels[train],
        keep=np.arange(len(train)) % 5 > 0,
        score=random.random(len(train)).astype(np.float32),
        reason=[""] * len(train),
        fingerprint=pack.fingerprint,
        x=random.normal(size=len(train)).astype(np.float32),
        y=random.normal(size=len(train)).astype(np.float32),
        meta={"data": "digits"},
    ).save(path)
    return path


if __name__ == "__main__":
    main()
