"""What shortens the start of commands."""

import gc
import subprocess
import sys

import pytest

from thresher.startup import quick_imports


def test_a_module_is_imported_while_the_block_runs() -> None:
    code = (
        "import sys; from thresher.startup import importing\n"
        "with importing('fractions'): pass\n"
        "sys.exit('fractions' not in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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


def test_garbage_is_collected_again_after_imports() -> None:
    assert gc.isenabled()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
