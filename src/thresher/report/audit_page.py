"""The page of an audit: one self-contained HTML file, most serious findings first.

Images are inline and styles too; there are no scripts, fonts or requests, and the content policy
forbids them.
"""

import base64
import html
import json
import shlex
from pathlib import Path

import numpy as np

from thresher.auditing.findings import KINDS, Audit, Example, Finding, next_commands
from thresher.data.images import encode_png, shown_channels
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.paths import AuditPaths, as_path, write_text
from thresher.report.style import html_page
from thresher.report.tables import html_table

LARGEST_SIDE = 96
HEADS = ("finding", "found", "share", "dropped")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
.grid{display:grid;gap:14px;grid-template-columns:repeat(auto-fill,minmax(136px,1fr));margin:1em 0}
.grid figure{font-size:.8rem;overflow-wrap:anywhere}
.grid img{display:block;width:96px;height:96px;object-fit:contain;image-rendering:pixelated;
background:var(--card);border:1px solid var(--line);border-radius:4px}
.pair{display:flex;gap:4px}.grid .pair img{width:64px;height:64px}
"""


def write_audit_page(audit: Audit, out: Path | str | None = None) -> Path:
    """Write the page of an audit to its folder, or to another, and return its path."""
    page = Path(audit.page) if out is None else as_path(out, "out") / "index.html"
    # A pack inside the audit's folder moves with it.
    inside = AuditPaths(Path(audit.selection).parent).pack
    pack = Pack.open(inside if inside.exists() else Selection.load(audit.selection).meta["data"])
    write_text(page, render(audit, pack))
    return page


def render(audit: Audit, pack: Pack) -> str:
    """Return the page as text."""
    title = html.escape(f"Audit of {audit.data}")
    dropped = audit.train - audit.kept
    commands = {what: _code(words) for what, words in next_commands(audit, pack).items()}
    parts = [
        f"<header><h1>{title}</h1><p class='sub'>{audit.train:,} training and {audit.test:,} other "
        f"images of {audit.classes:,} classes, seen with {html.escape(audit.network)}</p></header>",
        *(f'<p class="warning">{html.escape(note)}</p>' for note in audit.notes),
        "<section><h2>Summary</h2>",
        html_table(HEADS, [_row(finding) for finding in audit.findings], numbers=(1, 3)),
        f"<p>The selection keeps {audit.kept:,} of {audit.train:,} training images and drops "
        f"{dropped:,}; each of these is counted once. Look at them before you trust it: "
        f"{commands['review']} keeps, drops or relabels single images. Train on the rest with "
        f"{commands['train']}, or write it to a folder with {commands['export']}.</p></section>",
        *(_section(finding, pack) for finding in audit.findings if finding.count),
        _details(audit),
    ]
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    return html_page(title, parts, _STYLE, policy)


def _code(words: tuple[str, ...]) -> str:
    return f"<code>{html.escape(shlex.join(words))}</code>"


def _details(audit: Audit) -> str:
    text = html.escape(json.dumps({**audit.settings, **audit.versions}, indent=1))
    return f"<details><summary>Options and versions</summary><pre>{text}</pre></details>"


def _row(finding: Finding) -> list[str]:
    kind = KINDS[finding.kind]
    share = f"{100 * finding.share:.2f} % of {kind.of}"
    return [kind.title, f"{finding.count:,}", share, f"{finding.dropped:,}"]


def _section(finding: Finding, pack: Pack) -> str:
    kind = KINDS[finding.kind]
    shown = len(finding.examples)
    more = f" The first {shown} are shown." if shown < finding.count else ""
    note = f'<p class="warning">{html.escape(finding.note)}</p>' if finding.note else ""
    of_images = kind.of != "classes"  # the name of a class may be the id of an image
    items = "".join(_example(example, pack if of_images else None) for example in finding.examples)
    return (
        f"<section><h2>{html.escape(kind.title)}: {finding.count:,}</h2>"
        f"<p>{html.escape(kind.explanation)}{more}</p>{note}"
        f'<div class="grid">{items}</div></section>'
    )


def _example(example: Example, pack: Pack | None) -> str:
    ids = [id for id in (example.id, example.other) if id is not None]
    images = "" if pack is None else "".join(_image(id, pack) for id in ids)
    labels = " / ".join(
        html.escape(label) for label in (example.label, example.other_label) if label
    )
    text = " · ".join(html.escape(part) for part in (example.id, example.reason) if part)
    text = text.replace("/", "/<wbr>")  # a long id breaks after a folder
    wrapped = f'<div class="pair">{images}</div>' if example.other else images
    return f"<figure>{wrapped}<b>{labels}</b><figcaption>{text}</figcaption></figure>"


def _image(id: str, pack: Pack) -> str:
    """Return an image as a data URI; nothing for files and classes that are not in the pack."""
    position = int(pack.positions([id])[0])
    if position < 0:
        return ""
    if pack.image_shape is None:
        pixels = pack.images(np.array([position]), size=LARGEST_SIDE)[0]
    else:
        pixels = shown_channels(pack.view(position))
    data = base64.b64encode(encode_png(pixels)).decode()
    return f'<img alt="{html.escape(id)}" src="data:image/png;base64,{data}">'
