"""How images are described to nvJPEG; a GPU decodes them in `tests/training/test_stream_gpu.py`."""

import ctypes

import numpy as np

from thresher.data.nvjpeg import planes


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
