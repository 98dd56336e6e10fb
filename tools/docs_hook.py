"""MkDocs hook: put the pages under their repository paths and add the generated reference.

`mkdocs.yml` names this file; MkDocs calls `on_config`, `on_files` and `on_post_page`.
"""

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

import reference  # noqa: E402

SHOWN = (
    "*.md",
    "docs/*.md",
    "docs/images/*",
    "benchmarks/*.md",
    "benchmarks/results/**/*",
    "examples/*",
    "examples/loops/*",
    "examples/notebooks/*",
    "LICENSE",
)
"""What the site holds, as patterns of repository paths."""
LOADED = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\s\">]*")
"""What a page loads from another site; links to other sites are fine."""
GENERATED = {"docs/reference/commands.md": "thresher train"}
"""Generated pages and what a reader must find there."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fail if a public name has no docstring."""
    missing = reference.undocumented()
    if missing:
        raise PluginError("public names without a docstring:\n  " + "\n  ".join(missing))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what MkDocs collected: repository paths, and the generated pages."""
    root = Path(config.config_file_path).parent
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    paths = {path for pattern in SHOWN for path in root.glob(pattern) if path.is_file()}
    for path in sorted(paths):
        name = path.relative_to(root).as_posix()
        files.append(File(name, str(root), config.site_dir, config.use_directory_urls))
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"docs/reference/{name}", content=text))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Warn, which `--strict` makes an error, of a page that needs the network or lacks its text."""
    log = get_plugin_logger("docs_hook")
    for loaded in LOADED.findall(output):
        log.warning("%s loads from another site: %s", page.file.src_uri, loaded)
    expected = GENERATED.get(page.file.src_uri, "")
    if expected not in output:
        log.warning("%s does not contain %r", page.file.src_uri, expected)
    return output
