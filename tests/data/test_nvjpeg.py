"""How images are described to nvJPEG; a GPU decodes them in `tests/training/test_stream_gpu.py`."""

import ctypes
import weakref

import numpy as np
import pytest
import torch

from thresher.data.lent_memory import LentMemory
from thresher.data.nvjpeg import aligned_ends, planes


class Image(ctypes.Structure):
    """nvjpegImage_t of nvJPEG's header."""

    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


def test_planes_have_the_layout_of_nvjpegs_header() -> None:
    images, sizes = np.array([1 << 40, 4096]), np.array([[5, 7], [400, 300]])
    described = planes(images, sizes)
    assert described.nbytes == 2 * ctypes.sizeof(Image)
    found = (Image * 2).from_buffer(bytearray(described.tobytes()))
    for image, address, (height, width) in zip(found, images, sizes, strict=True):
        assert [image.channel[n] for n in range(3)] == [
            address + n * height * width for n in (0, 1, 2)
        ]
        assert image.channel[3] is None
        assert list(image.pitch) == [width, width, width, 0]


def test_blocks_begin_at_aligned_places_and_do_not_overlap() -> None:
    lengths = np.array([1, 512, 513, 100_000], np.uint64)
    ends = aligned_ends(lengths)
    assert ends.tolist() == [512, 1024, 2048, 2048 + 100_352]
    assert (np.diff(ends, prepend=0) >= lengths).all()


@pytest.mark.parametrize("with_flags", [False, True])
def test_lent_memory_is_kept_until_the_stream_that_gave_it_back_has_ended(with_flags: bool) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    current = 7

    def make(size: int) -> torch.Tensor:
        if size > 1000:
            raise RuntimeError("out of memory")
        block = torch.empty(size, dtype=torch.uint8)
        made.append(weakref.ref(block))
        return block

    lender = LentMemory(make, lambda: current, with_flags)
    flags = [ctypes.c_uint(0)] if with_flags else []
    kinds = [ctypes.c_uint] if with_flags else []
    place = ctypes.POINTER(ctypes.c_void_p)
    malloc = ctypes.CFUNCTYPE(ctypes.c_int, place, ctypes.c_size_t, *kinds)(lender.callbacks.malloc)
    free = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lender.callbacks.free)
    first, second = ctypes.c_void_p(), ctypes.c_void_p()
    assert malloc(ctypes.byref(first), 100, *flags) == 0
    assert malloc(ctypes.byref(second), 0, *flags) == 0
    assert first.value
    assert second.value not in (None, first.value)
    ctypes.memset(first.value, 1, 100)
    assert free(first.value) == 0
    current = 8
    assert free(second.value) == 0
    lender.give_up(8)
    assert made[0]() is not None
    assert made[1]() is None
    lender.give_up(7)
    assert made[0]() is None
    assert malloc(ctypes.byref(first), 1001, *flags) != 0
    assert free(None) == 0
