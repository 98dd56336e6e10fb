"""Versions, hardware, commit, cores and devices, compared with what the system says."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from thresher import __version__
from thresher.environment import (
    choose_device,
    core_count,
    git_commit,
    hardware,
    versions,
)
from thresher.errors import InvalidValueError

ROOT = Path(__file__).parents[1]


def test_versions_name_what_is_installed() -> None:
    found = versions(("torch", "numpy", "no-such-package"))
    assert found["thresher"] == __version__
    assert found["python"] == platform.python_version()
    assert (
        found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    )
    assert "no-such-package" not in found
    assert ("cuda" in found) == (torch.version.cuda is not None)


def test_versions_do_not_import_torch() -> None:
    code = "import sys, thresher.environment as e; e.versions(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_hardware_names_this_machine() -> None:
    found = hardware("cpu")
    assert found["host"] == platform.node()
    assert found["cores"] == os.cpu_count()
    assert found["system"] == f"{platform.system()} {platform.machine()}"
    assert "gpu" not in found


def test_the_commit_is_that_of_the_checkout() -> None:
    said = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    expected = said.stdout.strip() if said.returncode == 0 else None
    git_commit.cache_clear()  # the checkout may have moved since this process started
    commit = git_commit()
    assert (commit and commit.removesuffix("+changes")) == expected
    assert expected is None or re.fullmatch("[0-9a-f]{40}", expected)


def _copy(folder: Path) -> None:
    """Copy what `git_commit` needs to a package in `folder`."""
    (folder / "thresher").mkdir(parents=True)
    for name in ("__init__.py", "environment.py", "errors.py", "startup.py", "version.py"):
        source = (ROOT / "src" / "thresher" / name).read_text() if name != "__init__.py" else ""
        (folder / "thresher" / name).write_text(source)


def _commit_all(repository: Path) -> None:
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b",
                                     "commit", "-q", "--allow-empty", "-m", "x"]):  # fmt: skip
        subprocess.run(["git", "-C", str(repository), *command], check=True)


def _said(folder: Path) -> list[str]:
    code = "import thresher.environment as e; print(e.__file__, e.git_commit())"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert not done.stderr
    return done.stdout.split()


def test_the_commit_mentions_changed_files_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "src"
    _copy(source)
    (tmp_path / "notes.txt").write_text("a")
    _commit_all(tmp_path)
    (tmp_path / "notes.txt").write_text("b")  # not part of the package
    assert re.fullmatch("[0-9a-f]{40}", _said(source)[1])
    with (source / "thresher" / "version.py").open("a") as file:
        file.write("# changed\n")
    assert re.fullmatch(r"[0-9a-f]{40}\+changes", _said(source)[1])


def test_an_installed_package_in_a_repository_has_no_commit(tmp_path: Path) -> None:
    """site-packages inside a user's repository: that commit says nothing about Thresher."""
    site = tmp_path / "env" / "site-packages"
    _copy(site)
    _commit_all(tmp_path)
    assert _said(site) == [str(site / "thresher" / "environment.py"), "None"]


def test_cores_are_those_this_process_may_use() -> None:
    assert core_count() == len(os.sched_getaffinity(0))
    one = min(os.sched_getaffinity(0))
    limit = f"import os; os.sched_setaffinity(0, {{{one}}})"
    code = f"{limit}\nimport thresher.environment as e; print(e.core_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_devices() -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    assert choose_device().type == choose_device("auto").type == best
    assert choose_device("cpu") == torch.device("cpu")


def test_auto_does_not_choose_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == torch.device("cpu")
    assert choose_device("mps") == torch.device("mps")


@pytest.mark.parametrize("name", ["tpu", "", "cpux", "meta"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        choose_device(name)
    assert str(caught.value) == f'device "{name}" is not available here; use cpu'
    assert caught.value.parameter == "device"
