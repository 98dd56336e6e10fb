"""`thresher audit`: find copies, leaks, label errors, outliers and broken images."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.auditing.config import AuditConfig
from thresher.cli.commands import Outcome, values_of
from thresher.cli.packs import ensure_pack
from thresher.errors import InvalidValueError
from thresher.options import option
from thresher.startup import skip_pandas

if TYPE_CHECKING:
    from thresher.auditing.findings import Audit
    from thresher.data.pack import Pack


@dataclass(frozen=True, kw_only=True)
class AuditCommand(AuditConfig):
    images: str | None = option(None, positional=True)
    """A folder of images (class/name.ext or split/class/name.ext), a pack, or a name in the cache;
    the same as `data`."""
    data: str | None = None
    """Data to audit."""
    out: Path
    """Folder to write to: index.html, selection.parquet and audit.json."""


def audit(config: AuditCommand) -> Outcome:
    """Look for faults in a folder of images or a pack, and write a selection without them.

    Finds near-copies within and across classes, training images that are copies of test images,
    likely label errors, outliers, broken and odd images, and small classes. Writes a page with
    examples, index.html, and a selection for `thresher train --selection`. Unless you name a
    network, a small one is trained on the images first. If interrupted, the same command resumes.
    """
    from thresher.auditing.audit import audit as look
    from thresher.auditing.audit import open_images
    from thresher.paths import AuditPaths
    from thresher.report.page import write_report

    skip_pandas()
    if (config.images is None) == (config.data is None):
        raise InvalidValueError("the data to audit must be named once", "give `data`")
    data = config.images or config.data or ""
    if not Path(data).exists():  # a folder of images may have the name of a known data set
        ensure_pack(data)
    pack = open_images(data, AuditPaths(config.out))
    found = look(pack, config.out, AuditConfig(**values_of(config, AuditConfig)))
    write_report(found)
    return Outcome(found, _text(found, pack))


def _text(found: "Audit", pack: "Pack") -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from thresher.auditing.findings import KINDS, next_commands

    table = Table("finding", box=None, pad_edge=False)
    for name in ("found", "share", "dropped"):
        table.add_column(name, justify="right")
    for finding in found.findings:
        counts = (f"{finding.count:,}", f"{100 * finding.share:.2f} %", f"{finding.dropped:,}")
        table.add_row(KINDS[finding.kind].title, *counts)
    commands = {what: shlex.join(words) for what, words in next_commands(found, pack).items()}
    notes = [finding.note for finding in found.findings if finding.note] + list(found.notes)
    lines = [
        f"{found.selection} keeps {found.kept:,} of {found.train:,} training images",
        f"Look at them: {found.page}",
        f"Review them: {commands['review']}",
        f"Train without them: {commands['train']}",
        f"Export the rest: {commands['export']}",
    ]
    copied = [Text(line, no_wrap=True) for line in lines]
    return Group(table, "", "Each dropped image is counted once.", *notes, "", *copied)
