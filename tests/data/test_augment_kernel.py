"""The kernel of the augmentation on a GPU, bit by bit as torch's operations.

Without a GPU, but with Triton: `TRITON_INTERPRET=1 pytest tests/data/test_augment_kernel.py`.
"""

import os
from typing import Any

import pytest
import torch

from thresher.data.augment import Augment
from thresher.data.hashing import sample_keys, signed

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark: Any = [] if INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if INTERPRETED else "cuda"
COLOUR = ([0.49, 0.48, 0.45], [0.25, 0.24, 0.26])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"crop": 7, "crop_padding": 3},
    {"crop": 7, "crop_padding": 0, "flip": False},
    {"reflect": True, "crop_padding": 2},
    {"cutout": 4},
    {"cutout": 5, "alternate": True, "crop": 9},
]


def _tensor(value: int) -> torch.Tensor:
    return torch.tensor(signed(value), device=DEVICE)


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", OPTIONS)
def test_it_gives_the_bits_of_torchs_operations(
    options: dict[str, Any], channels: int, gather: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (20, 10, 13, channels), generator=generator, dtype=torch.uint8)
    rows = torch.randint(0, 20, (33,), generator=generator) if gather else None
    keys = torch.from_numpy(sample_keys(map(str, range(33 if gather else 20))))
    mean, std = (values[:channels] for values in COLOUR)
    augment = Augment(mean, std, **options)
    here, chosen = images.to(DEVICE), None if rows is None else rows.to(DEVICE)
    for epoch, seed in ((0, 0), (3, 5), (1000, 2**63 + 11)):
        right = augment(images, keys, epoch, seed, rows=rows)
        with monkeypatch.context() as patch:
            if INTERPRETED:
                patch.setattr(Augment, "_has_kernel", lambda self, images: True)
            assert augment._has_kernel(here)
            made = augment(here, keys.to(DEVICE), _tensor(epoch), _tensor(seed), rows=chosen)
        assert made.stride() == right.stride()
        assert torch.equal(made.cpu().view(torch.int32), right.view(torch.int32))


def test_no_images_are_none() -> None:
    images, keys = torch.zeros(0, 10, 10, 3, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    made = Augment(*COLOUR)(images.to(DEVICE), keys.to(DEVICE), _tensor(0), _tensor(0))
    assert made.shape == (0, 3, 10, 10)
