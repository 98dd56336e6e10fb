"""Images of two, four and more channels can be looked at: on the page and in an audit."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from thresher.app.selection_view import SelectionView
from thresher.app.thumbnails import thumbnails
from thresher.auditing.findings import Example
from thresher.data.image_statistics import image_statistics
from thresher.data.pack import Pack
from thresher.data.sources.registry import open_source
from thresher.data.write import WriteOptions, write_pack
from thresher.report.audit_page import _example
from thresher.select.filters.random import RandomFilter
from thresher.select.run import run_filter


def made(tmp_path: Path, channels: int, side: int) -> Pack:
    images = np.random.default_rng(0).integers(0, 256, (6, side, side, channels), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(6) % 2)
    source = open_source(tmp_path / "images.npz")
    return write_pack(source, tmp_path / "pack", WriteOptions(processes=1))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("side", [9, 140])
def test_images_of_any_channels_are_shown(tmp_path: Path, channels: int, side: int) -> None:
    pack = made(tmp_path, channels, side)
    run_filter(RandomFilter(), pack, out=tmp_path / "s.parquet")
    view = SelectionView(tmp_path / "s.parquet")
    data, kind = view.image(view.selection.ids[1])
    with Image.open(io.BytesIO(data)) as shown:
        assert (kind, shown.mode) == ("image/png", "L" if channels < 3 else "RGB")
        first = np.asarray(shown).reshape(side, side, -1)[..., 0]
    np.testing.assert_array_equal(first, pack.view(1)[..., 0])
    small = thumbnails(pack, np.arange(6))
    assert small.shape == (6, min(side, 64), min(side, 64), 3)
    assert "data:image/png" in _example(Example(id=view.selection.ids[1]), pack)
    assert image_statistics(pack, np.arange(6)).height.tolist() == [side] * 6
