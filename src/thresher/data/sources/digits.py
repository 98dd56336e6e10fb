"""Handwritten digits, 8×8 grey, from scikit-learn's own copy: the data set that is always there."""

from collections.abc import Iterator

import numpy as np

from thresher.data.sources.base import Block

TEST_SHARE = 5  # every fifth sample is for testing: 1,437 to train, 360 to test


class Digits:
    """1,797 images; scikit-learn stores 17 grey levels, which become 0 … 255."""

    name = "digits"
    classes: list[str] = [str(digit) for digit in range(10)]  # noqa: RUF012 (a protocol attribute)
    image_shape: tuple[int, int, int] | None = (8, 8, 1)

    def key(self) -> str:
        return "digits, from scikit-learn"

    def chunks(self) -> list[str]:
        return ["digits"]

    def read(self, chunk: str) -> Iterator[Block]:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
        n = len(images)
        yield Block(
            ids=[f"digits/{row:04d}" for row in range(n)],
            labels=bunch.target,
            splits=["test" if row % TEST_SHARE == 0 else "train" for row in range(n)],
            images=images,
        )
