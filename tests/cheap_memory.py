"""What memory costs the processes of the tests: rare collections of garbage, and huge pages.

Forks of a large process cost less if its memory is in huge pages: their tables are smaller. A fork
of the server of the tests, which has loaded torch, took 37 ms of a core before it did anything, and
takes half of that.
"""

import ctypes
from pathlib import Path

RARELY = (20_000, 20, 20)
"""Thresholds of `gc.set_threshold`. With Python's own, a twentieth of the time of tests that make
many objects goes into looking for garbage."""
_HUGE = 2 << 20
_MADV_COLLAPSE = 25
"""Since Linux 6.1; older kernels refuse it, which costs nothing but the gain."""


def use_huge_pages() -> None:
    """Move the memory of this process that belongs to no file to huge pages."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_, name = f"{line} -".split(maxsplit=5)
        if "w" not in rights or name.strip() not in ("-", "[heap] -"):
            continue
        start, end = (int(address, 16) for address in span.split("-"))
        for address in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            advise(address, _HUGE, _MADV_COLLAPSE)
