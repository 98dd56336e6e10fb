"""Views of a test image whose predictions are averaged."""

import pytest
import torch

from thresher.training.evaluate import views


def test_shifted_views_move_by_a_pixel_along_the_diagonals() -> None:
    images = torch.arange(9.0).reshape(1, 1, 3, 3)
    seen = views(images, "shift")
    assert len(seen) == 8
    assert torch.equal(seen[0], images)
    assert torch.equal(seen[1], images)
    assert torch.equal(seen[2][..., 1:, 1:], images[..., :2, :2])
    assert torch.equal(seen[3][..., :2, :2], images[..., 1:, 1:])
    assert torch.equal(seen[4], images.flip(3))


@pytest.mark.parametrize("size", [(1, 1), (1, 4), (4, 1)])
def test_images_of_one_row_or_column_are_shifted(size: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size)
    seen = views(images, "shift")
    assert {view.shape for view in seen} == {images.shape}
    assert all(torch.isfinite(view).all() for view in seen)
