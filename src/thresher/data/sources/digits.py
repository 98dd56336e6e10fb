"""Handwritten digits, 8×8 grey, from the copy that ships with scikit-learn."""

from collections.abc import Iterator

import numpy as np

from thresher.data.sources.base import Block

TEST_EVERY = 5  # 1,437 training and 360 test images


class Digits:
    """1,797 images; the 17 grey levels that scikit-learn stores are scaled to 0 … 255."""

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
            splits=["test" if row % TEST_EVERY == 0 else "train" for row in range(n)],
            images=images,
        )
