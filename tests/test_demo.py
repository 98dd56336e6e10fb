"""`thresher demo`: it finds planted errors and ends with a verdict."""

from pathlib import Path

import pytest

from quick_network import NAME
from thresher.cli import demo as module
from thresher.data.pack import Pack
from thresher.study.tasks import Values

_definition = module._definition


def _with_quick_trials(pack: Pack) -> Values:
    """Find wrong labels with the network of the demo; train another, which takes less time."""
    definition = _definition(pack)
    base, steps = definition["base"], definition["steps"]
    extractor = {**steps["extractor"], "model": base["model"]}
    return {
        **definition,
        "base": {**base, "model": NAME},
        "steps": {**steps, "extractor": extractor},
    }


@pytest.mark.slow  # trains four small networks
def test_the_demo_finds_wrong_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer seeds and epochs than the real one, so that the verdict may be open."""
    monkeypatch.setattr(module, "SEEDS", 1)
    monkeypatch.setattr(module, "EPOCHS", 2)
    monkeypatch.setattr(module, "_definition", _with_quick_trials)
    config = module.Demo(out=tmp_path / "demo")
    outcome = module.demo(config)
    found = outcome.data["found"]
    assert found.changed == 216
    assert found.precision > 0.85
    assert found.recall > 0.85
    assert Path(found.figure).read_bytes().startswith(b"\x89PNG")
    assert Path(outcome.data["report"]).exists()
    assert {cell["selection"] for cell in outcome.data["cells"]} == {"full", "random", "network"}
    # Started again, it trains nothing and says the same.
    assert module.demo(config).data["verdicts"] == outcome.data["verdicts"]


def test_the_command_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / ".venv" / "bin" / "thresher"
    script.parent.mkdir(parents=True)
    script.touch(0o755)
    monkeypatch.setattr("sys.executable", str(script.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert module.thresher_command() == ".venv/bin/thresher"
    monkeypatch.setenv("PATH", str(script.parent))
    assert module.thresher_command() == "thresher"


def test_the_command_of_a_users_installation_is_typed_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "thresher"
    script.touch(0o755)
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["/somewhere/thresher/__main__.py"])  # as python -m thresher
    assert module.thresher_command() == "/usr/bin/python3 -m thresher"
    monkeypatch.setattr("sys.argv", [str(script)])
    assert module.thresher_command() == "thresher"
