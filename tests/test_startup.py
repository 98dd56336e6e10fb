"""What shortens the start and the end of commands."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.startup import quick_imports


def test_a_module_is_imported_while_the_block_runs() -> None:
    code = (
        "import sys; from thresher.startup import importing\n"
        "with importing('fractions'): pass\n"
        "sys.exit('fractions' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_error_does_not_wait_for_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.5); print('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    code = """
from thresher.startup import importing
try:
    with importing("slow"): raise ValueError
except ValueError:
    print("error")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["error", "imported"]


@pytest.mark.parametrize(("code", "printed"), [(0, ""), (None, "freed")])
def test_a_quick_end_frees_nothing(code: int | None, printed: str) -> None:
    program = f"""
from thresher.startup import QuickEnd
class Object:
    def __del__(self): print("freed")
kept = Object()
QuickEnd().code = {code}
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == printed


def test_a_study_worker_ends_quickly() -> None:
    program = """
import os, sys
from thresher.study.worker import main
class Object:
    def __del__(self): print("freed")
kept = Object()
sys.argv = ["worker", str(os.dup(1)), str(os.getppid()), "1"]
main()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_a_machine_without_a_driver_gets_no_message_of_the_early_connection() -> None:
    code = "from thresher.startup import start_gpu; start_gpu(triton=True)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


@pytest.mark.gpu
def test_torch_uses_the_connection_that_was_begun() -> None:
    code = """
from thresher.environment import choose_device
from thresher.startup import start_gpu
start_gpu(triton=True)
device = choose_device("cuda")
import torch
assert float(torch.ones(3, device=device).sum()) == 3
from thresher.startup import finish_triton
finish_triton()
import triton
key = getattr(triton.runtime.cache, "triton_key", None) or triton.compiler.compiler.triton_key
assert key.cache_info().currsize == 1
from triton.backends.nvidia.driver import CudaUtils
assert CudaUtils.instance.load_binary
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parts_of_numpy_are_loaded_when_they_are_used() -> None:
    code = """
import sys
from thresher.startup import quick_scipy
quick_scipy()
import scipy.special
assert "numpy.testing._private.utils" not in sys.modules
import numpy, numpy.testing
numpy.testing.assert_allclose(1.0, 1.0)
assert "numpy.testing._private.utils" in sys.modules
assert numpy.f2py.get_include()
quick_scipy()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_garbage_is_collected_again_after_imports() -> None:
    assert gc.isenabled()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_closed_streams_leave_their_numbers_to_no_other_file(tmp_path: Path) -> None:
    program = """
import sys
from thresher.startup import complete_streams
complete_streams()
print("to nowhere")
print("to nowhere", file=sys.stderr)
with open("file", "w") as file:
    file.write(str(file.fileno()))
"""
    command = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert int((tmp_path / "file").read_text()) > 2


def test_characters_that_the_terminal_lacks_are_escaped() -> None:
    program = (
        "from thresher.startup import complete_streams; complete_streams(); print('caf\u00e9')"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert done.stdout == b"caf\\xe9\n"
