"""Files around a release: they name the right version, files and commands."""

import contextlib
import re
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet

import thresher

ROOT = Path(__file__).parent.parent


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == thresher.__version__.partition(".dev")[0]
    assert citation["license"] == _project()["license"]
    assert citation["repository-code"] == _project()["urls"]["Source"]


def test_container_files_copy_what_exists() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Containerfile").read_text(), re.M)
    apptainer = (ROOT / "deploy" / "thresher.def").read_text()
    section = apptainer.partition("%files")[2].partition("%")[0]
    copied += [line.strip().rpartition(" ")[0] for line in section.strip().splitlines()]
    names = {name for line in copied for name in line.split()}
    assert {"src", "pyproject.toml", "LICENSE"} <= names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_job_of_kubernetes_runs_a_command_that_parses() -> None:
    from thresher.cli.parse import parse
    from thresher.cli.train import train
    from thresher.training.config import TrainConfig

    job = yaml.safe_load((ROOT / "deploy" / "pytorchjob.yaml").read_text())
    assert job["kind"] == "PyTorchJob"
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch", "the operator looks for this name"
        assert container["command"][:4] == ["torchrun", "-m", "thresher", "train"]
        config, _ = parse("train", TrainConfig, train, container["command"][4:])
        assert config.resume, "a restarted pod must go on"
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert str(gpus) == job["spec"]["nprocPerNode"]


def test_extras_are_named_as_in_messages() -> None:
    extras = _project()["optional-dependencies"].keys()
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"thresher-ml\[(\w+)\]", text)}
    assert named <= extras
    assert not any("thresher[" in text for text in texts), "the distribution is thresher-ml"


def _project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_pinned_versions_install_on_every_python_that_is_supported() -> None:
    """Debian 12 has Python 3.11.2, where a package that wants 3.11.5 ended `make setup`."""
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.M)
    version = _project()["requires-python"].removeprefix(">=") + ".0"
    refused, found = [], 0
    for name in pins:
        with contextlib.suppress(metadata.PackageNotFoundError):
            wanted = metadata.metadata(name).json.get("requires_python")
            found += 1
            if wanted and not SpecifierSet(str(wanted)).contains(version):
                refused.append((name, wanted))
    assert found > len(pins) / 2
    assert refused == []
