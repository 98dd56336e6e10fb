"""A model of another package, named by its entry point."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin_package import install
from thresher.models import registry
from thresher.plugins import Registry

Run = Callable[..., "subprocess.CompletedProcess[str]"]

LINEAR = """
from torch import nn


def linear(classes, channels):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, classes))
"""


def test_by_name_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "plain_models", LINEAR, "thresher.models", linear="plain_models:linear")
    monkeypatch.syspath_prepend(tmp_path)
    known = registry.MODELS
    monkeypatch.setattr(registry, "MODELS", Registry(known.kind, known.group, known.built_in))
    registry.check("linear")
    model = registry.build("linear", classes=5, channels=1)
    assert [tuple(p.shape) for p in model.parameters()] == [(5, 16), (5,)]


def test_by_name_from_the_command_line(thresher: Run, digits: Path, tmp_path: Path) -> None:
    install(tmp_path, "more_models", LINEAR, "thresher.models", linear="more_models:linear")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    options = ["--data", digits, "--epochs", 1, "--batch-size", 256, "--out", tmp_path / "run"]
    done = thresher("train", "--model", "linear", *options, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["model"] == "linear"
