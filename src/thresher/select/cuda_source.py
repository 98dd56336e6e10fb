"""Compile a file of CUDA C and launch its kernels, with NVRTC, a library that torch brings along.

Triton would take 0.6 s to import, 1 s to read itself and another second to compile. NVRTC compiles
three small kernels while torch is still being imported; importing this module does not load torch.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from thresher.errors import ThresherError

if TYPE_CHECKING:
    import torch

THREADS = 128
"""Threads of a block."""
CAPABILITY = (75, 76)
"""What `cuDeviceGetAttribute` calls the major and minor number of the compute capability."""
_lock = threading.Lock()


class CudaSource:
    """The kernels of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._code: dict[str, bytes] = {}
        self._modules: dict[int, _Module] = {}

    def compile(self, device: int = 0) -> bytes:
        """Return the code for a GPU, by its number; it is compiled once, whichever thread asks."""
        architecture = _architecture(device)
        with _lock:
            if architecture not in self._code:
                self._code[architecture] = compiled(self.path, architecture)
            return self._code[architecture]

    def load(self, device: int) -> "_Module":
        """Return the kernels on a GPU; none may be loaded while a CUDA graph is captured."""
        code = self.compile(device)
        with _lock:
            if device not in self._modules:
                self._modules[device] = _Module(code, device)
            return self._modules[device]

    def launch(self, kernel: str, threads: int, *arguments: "torch.Tensor | int | float") -> None:
        """Launch a kernel on the stream in use, on the GPU of the first argument, a tensor.

        Numbers are passed as `int` and `float` of C. The kernel gets `threads` or a few more.
        """
        first = arguments[0]
        assert not isinstance(first, int | float)
        self.load(first.device.index).launch(kernel, threads, arguments)


TSNE = CudaSource(Path(__file__).with_name("tsne_kernels.cu"))
"""A step of t-SNE."""


def start_compiling(source: CudaSource) -> None:
    """Compile for the first GPU in a thread; what fails here fails again in `load`."""

    def compile_it() -> None:
        with suppress(ThresherError):
            source.compile()

    threading.Thread(target=compile_it, name=source.path.name).start()


@cache
def available() -> bool:
    """Return whether kernels can be compiled and launched here."""
    return _nvrtc() is not None and _driver() is not None


def compiled(path: Path, architecture: str) -> bytes:
    """Compile a file for GPUs of an architecture such as "sm_90"."""
    nvrtc = _nvrtc()
    if nvrtc is None:
        raise ThresherError("NVRTC, which compiles kernels, was not found", "install it with torch")
    program = ctypes.c_void_p()
    source = path.read_bytes()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, path.name.encode(), 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), options):
            raise ThresherError(f"{path} cannot be compiled for {architecture}: {_log(program)}")
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _log(program: ctypes.c_void_p) -> str:
    nvrtc = _nvrtc()
    assert nvrtc is not None
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace").strip()


class _Module:
    """Compiled kernels on one GPU."""

    def __init__(self, code: bytes, device: int) -> None:
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), _handle(device))
        with self._current():
            _call("cuModuleLoadData", ctypes.byref(self.module), code)
        self.functions: dict[str, ctypes.c_void_p] = {}

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Use torch's context of the GPU in this thread, whichever was used before."""
        _call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def launch(
        self, kernel: str, threads: int, arguments: "tuple[torch.Tensor | int | float, ...]"
    ) -> None:
        import torch

        values = [_in_c(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream(arguments[0].device).cuda_stream)  # type: ignore[union-attr]
        with self._current():
            if kernel not in self.functions:
                function = self.functions[kernel] = ctypes.c_void_p()
                name = kernel.encode()
                _call("cuModuleGetFunction", ctypes.byref(function), self.module, name)
            grid, block = (-(-threads // THREADS), 1, 1), (THREADS, 1, 1)
            shape = (*grid, *block, 0)  # and no shared memory
            _call("cuLaunchKernel", self.functions[kernel], *shape, stream, pointers, None)


def _in_c(
    argument: "torch.Tensor | int | float",
) -> ctypes.c_int | ctypes.c_float | ctypes.c_void_p:
    if isinstance(argument, int):
        return ctypes.c_int(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_void_p(argument.data_ptr())


def _handle(device: int) -> ctypes.c_int:
    handle = ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGet", ctypes.byref(handle), device)
    return handle


@cache
def _architecture(device: int) -> str:
    numbers = [ctypes.c_int() for _ in CAPABILITY]
    for number, attribute in zip(numbers, CAPABILITY, strict=True):
        _call("cuDeviceGetAttribute", ctypes.byref(number), attribute, _handle(device))
    return "sm_" + "".join(str(number.value) for number in numbers)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the driver."""
    driver = _driver()
    if driver is None:
        raise ThresherError("there is no driver of an NVIDIA GPU")
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else f"error {code}"
        raise ThresherError(f"{name} failed on the GPU: {reason}")


@cache
def _driver() -> ctypes.CDLL | None:
    return _library("libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL | None:
    """Return NVRTC: torch's own library links it, wherever it is installed."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    linked = Path(torch.origin).parent / "lib" / "libcaffe2_nvrtc.so"
    for name in (str(linked), "libnvrtc.so.13", "libnvrtc.so.12"):
        library = _library(name)
        if library is not None and hasattr(library, "nvrtcGetCUBIN"):
            return library
    return None


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
