"""Read the arrays of CIFAR's python archive without running its code.

The archive is a pickle, and a pickle can run any code. Nothing that the pickle names is imported:
the four names that numpy writes are replaced by classes that only hold data, and any other name
is an error.
"""

import io
import pickle
from typing import Any

import numpy as np


class _Dtype:
    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and fields; only single bytes are accepted below."""


class _Array:
    def __init__(self, *_: Any) -> None:
        self.array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if dtype.code not in ("u1", "uint8", "|u1") or not isinstance(raw, bytes):
            raise ValueError("an array is not uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy":
            known = {"_reconstruct": _Array, "ndarray": _Array, "dtype": _Dtype}
            if name in known:
                return known[name]
        if (module, name) == ("_codecs", "encode"):  # Python 3's bytes in the old protocols
            return lambda text, encoding="latin1": text.encode("latin1")
        raise ValueError(f"it names {module}.{name}, which is not part of a CIFAR archive")


def load_arrays(data: bytes) -> dict[str, Any]:
    """Load a dictionary of uint8 arrays, lists, numbers and strings; ValueError if it is not."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
    except (pickle.UnpicklingError, ImportError, IndexError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("it is not a dictionary")
    plain = {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in content.items()}
    return {k: v.array if isinstance(v, _Array) else v for k, v in plain.items()}
