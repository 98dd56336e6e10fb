"""MkDocs hook: put the pages under their repository paths and add the generated reference.

`mkdocs.yml` names this file; MkDocs calls `on_config` and `on_files`.
"""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

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
