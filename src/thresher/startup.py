"""Shorter waits at the start and the end of a process: quick imports, what threads can load
meanwhile, and an end that frees nothing."""

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec

_triton: list[threading.Thread] = []


def complete_streams() -> None:
    """Open the standard streams that are closed, and let all characters be printed.

    Otherwise the next file that is opened takes the number of the closed stream, and what a library
    prints is written to that file. Characters that the encoding of the terminal lacks are escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free one, that of the stream
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Do not collect garbage: an import makes many objects, none of which is garbage.

    Importing torch takes a tenth less time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextlib.contextmanager
def importing(*modules: str) -> Iterator[None]:
    """Import modules in a thread while the block waits for something else, such as a GPU.

    An error in the block does not wait for them.
    """

    def load() -> None:
        for module in modules:
            importlib.import_module(module)

    thread = threading.Thread(target=load, name=" ".join(modules))
    thread.start()
    yield
    thread.join()


class _NoPandas:
    """A finder that says that pandas is not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not looked for now", name=name)
        return None


def skip_pandas() -> None:
    """Keep pyarrow, if it is loaded, from loading pandas, which takes 0.2 to 0.5 s.

    pyarrow loads it with the first value that it converts, only to see whether that is a pandas
    object. It looks again if something needs pandas, such as `Table.to_pandas`. For processes of
    our own, not for those of a Python user.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None or "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pyarrow.array([None])
    finally:
        sys.meta_path.remove(_NoPandas)


def quick_scipy() -> None:
    """Make the first import of scipy faster by a third, 0.1 s, for processes of our own.

    It names all parts of numpy, which loads those that numpy itself loads only when they are used.
    """
    import numpy  # noqa: F401 - where the parts are looked for

    for name in ("numpy.f2py", "numpy.testing"):
        spec = importlib.util.find_spec(name) if name not in sys.modules else None
        if spec is None or spec.loader is None:
            continue
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        setattr(sys.modules["numpy"], name.partition(".")[2], module)


@dataclass
class QuickEnd:
    """Ends this process, once `code` is set and everything else that ends with it has ended.

    Python would free all objects one by one: with torch that takes 0.4 s.
    """

    code: int | None = None
    """The exit code; None lets Python end the process, such as after an error."""

    def __post_init__(self) -> None:
        atexit.register(self._leave)  # what is registered later runs before

    def _leave(self) -> None:
        if self.code is None:
            return
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(self.code)


def start_gpu(triton: bool = False) -> None:
    """Begin in threads, while torch is imported, what takes long before the first kernel runs.

    To connect to the first GPU takes 0.5 s. With `triton`, Triton reads itself, which takes 1 s,
    and compiles its driver on a machine where it never ran; torch is imported a third slower.
    """
    if "torch" in sys.modules or sys.platform != "linux":
        return
    threading.Thread(target=_open_context, name=_open_context.__name__).start()
    if triton:
        _triton.append(threading.Thread(target=_start_triton, name=_start_triton.__name__))
        _triton[-1].start()


def finish_triton() -> None:
    """Wait for what `start_gpu` began with Triton, before Triton would do the same again."""
    while _triton:
        _triton.pop().join()


def _start_triton() -> None:
    # What fails here fails again where it is needed.
    with contextlib.suppress(Exception):
        # One thread imports it: two that import parts of it find each other's half-made modules.
        importlib.import_module("triton")
        driver = threading.Thread(target=_build_driver, name=_build_driver.__name__)
        driver.start()
        _read_triton()
        driver.join()


def _read_triton() -> None:
    """Let Triton compute the hash of itself that names its compiled kernels; it remembers it."""
    for module in ("triton.runtime.cache", "triton.compiler.compiler"):  # 3.4 and before
        with contextlib.suppress(ImportError, AttributeError, OSError):
            importlib.import_module(module).triton_key()
            return


def _build_driver() -> None:
    """Let Triton compile its driver, in a process; it loads the compiled one later."""
    with contextlib.suppress(Exception):
        importlib.import_module("triton.backends.nvidia.driver").CudaUtils()


def _open_context() -> None:
    """Create the CUDA context that torch will use; what fails here fails again in torch."""
    with contextlib.suppress(OSError, AttributeError):
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
