"""Blocks of memory that a C library asks for through callbacks, made by torch."""

import ctypes
from collections.abc import Callable

from torch import Tensor


class Callbacks(ctypes.Structure):
    """nvjpegDevAllocator_t and nvjpegPinnedAllocator_t: how to get memory, and to give it back."""

    _fields_ = (("malloc", ctypes.c_void_p), ("free", ctypes.c_void_p))


class LentMemory:
    """Lends tensors to a library.

    A GPU may still use what the library gives back, since cudaFree, for which this stands, waits
    for it. So a block is kept until `give_up` is called for the stream that was current.

    Args:
        make: Returns a tensor of some bytes.
        stream: Returns the number of the current stream.
        with_flags: Whether the library passes flags, too, as to cudaHostAlloc.
    """

    def __init__(
        self, make: Callable[[int], Tensor], stream: Callable[[], int], with_flags: bool = False
    ) -> None:
        self._make, self._stream = make, stream
        self._lent: dict[int, Tensor] = {}
        self._returned: dict[int, list[Tensor]] = {}
        place, size = ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t
        flags = [ctypes.c_uint] if with_flags else []
        # They must live as long as the library uses them.
        self._malloc = ctypes.CFUNCTYPE(ctypes.c_int, place, size, *flags)(self._lend)
        self._free = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._take_back)
        addresses = (ctypes.cast(call, ctypes.c_void_p) for call in (self._malloc, self._free))
        self.callbacks = Callbacks(*addresses)

    def give_up(self, stream: int) -> None:
        """Free what came back while `stream` was current; its work must have ended."""
        self._returned.pop(stream, None)

    def _lend(self, place: "ctypes._Pointer[ctypes.c_void_p]", size: int, flags: int = 0) -> int:
        try:
            block = self._make(max(1, size))
        except RuntimeError:  # out of memory
            return 1
        self._lent[block.data_ptr()] = block
        place[0] = ctypes.c_void_p(block.data_ptr())
        return 0

    def _take_back(self, address: int | None) -> int:
        block = self._lent.pop(address or 0, None)
        if block is not None:
            self._returned.setdefault(self._stream(), []).append(block)
        return 0
