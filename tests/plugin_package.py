"""Install a one-module package with entry points into a folder, as pip would."""

from pathlib import Path


def install(folder: Path, module: str, code: str, group: str, **entries: str) -> None:
    """Write `module`.py and the metadata that names its entry points to `folder`."""
    (folder / f"{module}.py").write_text(code)
    metadata = folder / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {target}" for name, target in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
