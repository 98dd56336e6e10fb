"""The flow is one way: a layer imports only layers to its left, anywhere in its files."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "thresher"

GROUND = {"", "errors", "paths", "progress", "distributed"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "paths": {"errors"},
    "progress": set(),
    "distributed": {"errors", "paths", "progress"},
    "data": GROUND,
    "models": GROUND | {"data"},
    "select": GROUND | {"data", "models"},
    "train": GROUND | {"data", "models"},
    "scaling": GROUND | {"data", "models", "select", "train"},
    "study": GROUND | {"data", "models", "select", "train", "scaling"},
    "report": GROUND | {"data", "models", "select", "train", "scaling", "study"},
    "app": GROUND | {"data", "models", "select", "train", "scaling", "study"},
}
MAY_IMPORT["recipes"] = GROUND | set(MAY_IMPORT)
MAY_IMPORT["cli"] = GROUND | set(MAY_IMPORT)


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(path for path in SOURCE.rglob("*.py") if _layer(path) in MAY_IMPORT)


def _imports(path: Path) -> list[tuple[int, str]]:
    """Every thresher module named in an import anywhere in the file, functions included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            if node.module == "thresher":
                found += [(node.lineno, f"thresher.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, node.module or ""))
    return [(line, name) for line, name in found if name.split(".")[0] == "thresher"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_layer_imports_only_layers_to_its_left(path: Path) -> None:
    layer = _layer(path)
    for line, name in _imports(path):
        target = [*name.split("."), ""][1]
        target = "" if target.startswith("__") else target
        allowed = MAY_IMPORT[layer] | {layer}
        assert target in allowed, f"{path}:{line} ({layer}) imports {name}"


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - begun


def test_help_answers_at_once_and_does_not_load_torch() -> None:
    command = [sys.executable, "-m", "thresher", "--help"]
    assert min(_seconds(command) for _ in range(5)) < 0.5
    command.insert(1, "-Ximporttime")
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "thresher.cli" in loaded
    for heavy in ("torch", "numpy", "pyarrow", "tyro", "rich"):
        assert f" {heavy}\n" not in loaded, f"thresher --help imports {heavy}"


@pytest.mark.parametrize("module", ["data.pack", "data.selection", "train.config", "cli.commands"])
def test_configuration_and_data_load_without_torch(module: str) -> None:
    code = f"import sys, thresher.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
