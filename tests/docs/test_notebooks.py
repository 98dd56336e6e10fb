"""The tutorial notebooks run in a real kernel, and show what their text says."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def execute(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the cells of a notebook in order, in a folder, and return what they printed."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    # As in an activated environment.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    done = nbclient.NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs: list[Any] = [output for cell in done.cells for output in cell.get("outputs", ())]
    return "".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_stores_no_outputs(file: Path) -> None:
    for cell in json.loads(file.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.slow  # audits, and trains four times
def test_the_notebook_on_audits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "audit-tutorial" / "AUDIT" / "of an earlier run"
    left.mkdir(parents=True)
    printed = execute("audit", tmp_path, monkeypatch)
    assert not left.exists()
    dropped = {kind: int(share) for kind, share in re.findall(r"([\w ]+): (\d+)% dropped", printed)}
    assert dropped["noise"] == dropped["leaks"] == 100
    assert dropped["wrong labels"] >= 75
    assert int(re.findall(r"(\d+) other images dropped", printed)[0]) <= 30
    assert "images audited" in printed
    assert (tmp_path / "audit-tutorial" / "AUDIT" / "index.html").exists()


@pytest.mark.slow  # starts a kernel and a command
def test_the_notebook_on_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = execute("verdicts", tmp_path, monkeypatch)
    assert "worse: images tenth is worse than images all" in printed
    assert "equivalent: images shuffled and images all are equivalent within 1 points" in printed
    assert "shuffled against all: not enough runs" in printed
    assert (tmp_path / "verdicts-tutorial" / "imported" / "report" / "index.html").exists()
