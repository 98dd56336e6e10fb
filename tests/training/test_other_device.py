"""Training and features on a device that Thresher is not tested on, such as Apple's GPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("other_device.py")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> dict[str, Any]:
    """What the program prints."""
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of torch cannot pretend that there is a device")
    folder = tmp_path_factory.mktemp("device")
    command = [sys.executable, str(PROGRAM), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("run", ["first", "branch", "pruned"])
def test_runs_are_those_of_the_cpu(outcome: dict[str, Any], run: str) -> None:
    cpu, other = outcome[run]
    assert other == pytest.approx(cpu, rel=2e-3, abs=5e-3)


def test_features_are_those_of_the_cpu(outcome: dict[str, Any]) -> None:
    cpu, other = outcome["features"]
    np.testing.assert_allclose(other, cpu, atol=1e-5)


def test_a_wrong_kernel_is_found_before_its_results_are_used(outcome: dict[str, Any]) -> None:
    advice = "use device cpu, or a newer version of torch"
    for what, name in (
        ("gradients", "gradients"),
        ("updates of weights", "updates"),
        ("features", "wrong features"),
    ):
        assert f"pretended computes other {what} than the CPU" in outcome[name]
        assert advice in outcome[name]


def test_what_such_a_device_cannot_do_is_refused(outcome: dict[str, Any]) -> None:
    assert "precision must be fp32 on pretended, got bf16" in outcome["half"]
    assert "2 workers cannot share pretended" in outcome["workers"]
    assert not any("json" in name for name in outcome["left"])
