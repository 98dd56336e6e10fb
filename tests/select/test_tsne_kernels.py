"""The CUDA kernels of t-SNE, built for the CPU with one thread after the other."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from thresher.select import cuda_source, tsne
from thresher.select.affinities import Affinities, affinities
from thresher.select.repulsion import FIXED_POINT, Grid, field
from thresher.select.tsne_kernels import DescentState, Kernels

SHIM = """
#include <cmath>
#define __device__
#define __global__
struct Index { int x; };
static Index blockIdx, threadIdx, blockDim = {1};
static const int warpSize = 1;
static float __shfl_xor_sync(unsigned, float value, int) { return value; }
static void atomicAdd(unsigned long long *at, unsigned long long value) { *at += value; }
extern "C" void use_thread(int i) { blockIdx.x = i; }
#include "tsne_kernels.cu"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "shim.cpp").write_text(SHIM)
    source, library = str(cuda_source.TSNE.path.parent), str(folder / "kernels.so")
    flags = ["-O1", "-shared", "-fPIC", "-x", "c++", f"-I{source}"]
    subprocess.run(["g++", *flags, str(folder / "shim.cpp"), "-o", library], check=True)
    return ctypes.CDLL(library)


class OneByOne:
    """Launches a kernel's threads one after the other."""

    def __init__(self, built: ctypes.CDLL, threads: int) -> None:
        self.built, self.threads = built, threads

    def launch(self, kernel: str, threads: int, *arguments: torch.Tensor | int | float) -> None:
        assert threads in (self.threads, 32 * self.threads)
        values = [cuda_source._in_c(argument) for argument in arguments]
        for i in range(self.threads):
            self.built.use_thread(i)
            getattr(self.built, kernel)(*values)


@pytest.fixture(scope="module")
def digits_p() -> Affinities:
    from sklearn.datasets import load_digits

    return affinities(torch.from_numpy(load_digits().data[:600]).float(), 30)


def _state(scale: float) -> DescentState:
    random = torch.Generator().manual_seed(0)
    state = DescentState.start(scale * torch.randn(600, 2, generator=random))
    state.update.copy_(0.1 * scale * torch.randn(600, 2, generator=random))
    state.exaggeration.fill_(12.0)
    state.rate.fill_(50.0)
    return state


@pytest.mark.parametrize("scale", [1e-4, 1.0, 8.0])
def test_a_step_is_that_of_plain_torch(
    built: ctypes.CDLL, digits_p: Affinities, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thresher.select.tsne_kernels.TSNE", OneByOne(built, digits_p.n))
    ours, plain = _state(scale), _state(scale)
    grid, kernels = Grid(128, ours.y.device), Kernels(digits_p)
    rows, columns = digits_p.rows(), digits_p.column.long()
    for _ in range(3):
        kernels.step(ours, grid)
        tsne._step(plain, digits_p, rows, columns, Grid(128, plain.y.device))
        torch.testing.assert_close(ours.z, plain.z, rtol=1e-5, atol=0.0)
        torch.testing.assert_close(ours.gains, plain.gains)
        torch.testing.assert_close(ours.update, plain.update, rtol=1e-3, atol=1e-4 * scale)
        torch.testing.assert_close(ours.y, plain.y, rtol=1e-3, atol=1e-4 * scale)


def test_points_beyond_the_grid_touch_no_memory_and_are_noticed(
    built: ctypes.CDLL, digits_p: Affinities
) -> None:
    y = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
    grid = Grid(128, y.device)
    place = grid.place(y)
    y[3], y[5], y[7] = torch.nan, torch.inf, 1e9
    code = OneByOne(built, 600)
    code.launch("spread_charges", 600, y, *place, grid.charge, 600, 128, FIXED_POINT)
    assert int(grid.charge.sum()) == pytest.approx(597 * FIXED_POINT, rel=1e-6)
    force, phi = torch.zeros(600, 2), torch.zeros(600)
    code.launch("read_field", 600, y, *place, torch.ones(128, 128), force, phi, 600, 128)
    assert phi.isnan().nonzero().flatten().tolist() == [3, 5, 7]
    assert force.isnan().any(1).nonzero().flatten().tolist() == [3, 5, 7]


def test_the_charges_are_those_of_plain_torch(built: ctypes.CDLL) -> None:
    y = torch.randn(600, 2, generator=torch.Generator().manual_seed(1))
    grid, plain = Grid(128, y.device), Grid(128, y.device)
    code = OneByOne(built, 600)
    code.launch("spread_charges", 600, y, *grid.place(y), grid.charge, 600, 128, FIXED_POINT)
    field(y, plain)
    apart = (grid.charge - plain.charge).abs()
    assert int(apart.max()) <= 2**12  # of 2**32: the last bits of float32
    assert int(grid.charge.sum()) == pytest.approx(int(plain.charge.sum()), rel=1e-7)


def test_a_kernel_that_cannot_be_launched_says_why() -> None:
    if cuda_source._driver() is None:
        with pytest.raises(cuda_source.ThresherError, match="no driver of an NVIDIA GPU"):
            cuda_source.TSNE.compile()
        assert not cuda_source.available()
    else:
        with pytest.raises(cuda_source.ThresherError, match="cuDeviceGet failed"):
            cuda_source.TSNE.compile(77)


@pytest.mark.gpu
def test_source_that_is_wrong_is_refused_with_the_compiler_s_words(tmp_path: Path) -> None:
    (tmp_path / "wrong.cu").write_text('extern "C" __global__ void f() { nothing(); }')
    with pytest.raises(cuda_source.ThresherError, match=r"sm_.*\n?.*nothing"):
        cuda_source.CudaSource(tmp_path / "wrong.cu").compile()
