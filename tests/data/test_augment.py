"""Augmentation: right pixels, right odds, and not one bit from batching or device."""

import numpy as np
import pytest
import torch
from torch import Tensor

from thresher.data.augment import Augment
from thresher.data.hashing import hash_bits, sample_keys
from thresher.errors import ThresherError


def some(
    n: int = 64, height: int = 12, width: int = 12, channels: int = 3
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (n, height, width, 3)
    images = torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)
    return images, torch.from_numpy(sample_keys([f"sample {i}" for i in range(n)]))


def plain(channels: int = 3, **options: object) -> Augment:
    """mean 0 and std 1/255: the result is the pixels' own values."""
    return Augment([0.0] * channels, [1 / 255] * channels, **options)  # type: ignore[arg-type]


def splitmix64(x: int) -> int:
    """Written out with Python's integers, as its authors give it."""
    mask = (1 << 64) - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def test_the_hash_is_splitmix64() -> None:
    keys = torch.from_numpy(sample_keys(["a", "b", "ß"]))
    for epoch, seed in ((0, 0), (7, 3), (2**40, 2**62)):
        start = epoch * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95
        wanted = [splitmix64((int(key) + start) & (2**64 - 1)) for key in keys]
        assert [int(bits) & (2**64 - 1) for bits in hash_bits(keys, epoch, seed)] == wanted


def test_keys_are_stable_and_apart() -> None:
    assert sample_keys(["train/0", "é"]).tolist() == [-6036700420655026621, 3394012004367669963]
    assert len(np.unique(sample_keys([str(i) for i in range(20_000)]))) == 20_000


def test_every_result_is_a_crop_or_its_mirror() -> None:
    """Against padding and cutting one by one, from the offsets that the result itself shows."""
    images, keys = some(40)
    padded = np.pad(images.numpy(), ((0, 0), (3, 3), (3, 3), (0, 0)))
    result = plain(crop_padding=3, crop=10)(images, keys, 2, 5).permute(0, 2, 3, 1).numpy()
    seen = set()
    for n in range(40):
        matches = [
            (y, x, mirrored)
            for y in range(9)
            for x in range(9)
            for mirrored in (False, True)
            for cut in [padded[n, y : y + 10, x : x + 10]]
            if np.allclose(result[n], cut[:, ::-1] if mirrored else cut, atol=1e-3)
        ]
        assert len(matches) == 1, n
        seen.add(matches[0])
    assert len(seen) > 30


def test_offsets_and_flips_are_uniform() -> None:
    n = 20_000
    keys = torch.from_numpy(sample_keys(map(str, range(n))))
    ramp = torch.arange(1, 82, dtype=torch.uint8).view(1, 9, 9, 1)
    rows = torch.zeros(n, dtype=torch.int64)
    result = plain(1, crop_padding=0, crop=7)(ramp, keys, 0, 0, rows=rows)[:, 0]
    corner, right = result[:, 0, 0].round().long(), result[:, 0, 1].round().long()
    flipped = right < corner
    assert abs(flipped.float().mean().item() - 0.5) < 0.02
    first = torch.where(flipped, corner - 6, corner) - 1
    counts = torch.bincount(first // 9 * 3 + first % 9, minlength=9).float()
    assert len(counts) == 9
    chi_squared = ((counts - n / 9) ** 2 / (n / 9)).sum().item()
    assert chi_squared < 32  # 8 degrees of freedom: one in 10,000 exceeds it


def test_batching_changes_no_bit() -> None:
    images, keys = some()
    augment = Augment([0.4, 0.5, 0.6], [0.2, 0.25, 0.3], crop_padding=2, cutout=5)
    whole = augment(images, keys, 3, 9)
    order = torch.randperm(64)
    parts = [augment(images[part], keys[part], 3, 9) for part in order.split([1, 20, 43])]
    assert torch.equal(torch.cat(parts), whole[order])
    assert torch.equal(augment(images, keys[order], 3, 9, rows=order), whole[order])


def test_epoch_and_seed_change_it_and_may_be_tensors() -> None:
    images, keys = some()
    augment = plain()
    first = augment(images, keys, 0, 0)
    assert not torch.equal(first, augment(images, keys, 1, 0))
    assert not torch.equal(first, augment(images, keys, 0, 1))
    as_tensors = augment(images, keys, torch.tensor(7), torch.tensor(11))
    assert torch.equal(as_tensors, augment(images, keys, 7, 11))
    assert torch.equal(augment(images, keys, torch.tensor(7), 11), as_tensors)


def test_cutout_blanks_a_square_of_mean_colour() -> None:
    images, keys = some(200, 16, 16)
    augment = plain(crop_padding=0, flip=False, cutout=6)
    kept = plain(crop_padding=0, flip=False)(images, keys, 0, 0)
    cut = augment(images, keys, 0, 0)
    blank = (cut == 0).all(1)
    assert torch.equal(cut[~blank[:, None].expand_as(cut)], kept[~blank[:, None].expand_as(cut)])
    for square in blank:
        ys, xs = torch.nonzero(square, as_tuple=True)
        height, width = ys.max() - ys.min() + 1, xs.max() - xs.min() + 1
        assert height * width == len(ys)
        assert 3 <= height <= 6
        assert 3 <= width <= 6
    assert blank[:, 0, 0].any()
    assert blank[:, 15, 15].any()


def test_normalisation_and_memory_format() -> None:
    images, _keys = some(8, 9, 13)
    augment = Augment([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], crop_padding=0, flip=False)
    result = augment.evaluate(images)
    mean, std = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    wanted = ((images / 255 - mean) / std).permute(0, 3, 1, 2)
    assert torch.allclose(result, wanted, atol=1e-6)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.shape == (8, 3, 9, 13)
    double = Augment([0.1], [0.4], dtype=torch.float64)
    assert double.evaluate(images[..., :1]).dtype == torch.float64


def test_a_channel_with_one_value_becomes_zero() -> None:
    """As in microscopy with two stains; its standard deviation is 0, and it became nan."""
    images, keys = some(8)
    images[..., 2] = 51
    augment = Augment([0.1, 0.2, 0.2], [0.4, 0.5, 0.0], crop_padding=0)
    for result in (augment.evaluate(images), augment(images, keys, 0, 0)):
        assert result[:, 2].abs().max() < 1e-6
        assert result[:, :2].isfinite().all()


def test_images_that_are_not_square_use_their_own_sides() -> None:
    images, keys = some(64, 6, 15)
    result = plain(crop_padding=2)(images, keys, 0, 0)
    assert result.shape == (64, 3, 6, 15)
    untouched = plain(crop_padding=0, flip=False)(images, keys, 0, 0)
    assert torch.allclose(untouched, images.permute(0, 3, 1, 2).float(), atol=1e-3)


def test_evaluate_takes_the_middle() -> None:
    images, _ = some(4, 32, 32)
    middle = plain(crop=28).evaluate(images)
    wanted = images[:, 2:30, 2:30].permute(0, 3, 1, 2).float()
    assert torch.allclose(middle, wanted, atol=1e-3)
    rows = torch.tensor([3, 0])
    assert torch.equal(plain(crop=28).evaluate(images[rows]), middle[rows])


def test_an_empty_batch_stays_empty() -> None:
    images, keys = some(0)
    assert plain()(images, keys, 0, 0).shape == (0, 3, 12, 12)


def test_bad_sizes_are_refused() -> None:
    images, keys = some(1)
    with pytest.raises(ThresherError, match=r"crop must be at most 12, .* \(12×12\), got 28"):
        plain(crop=28)(images, keys, 0, 0)
    with pytest.raises(ThresherError, match="crop must be at least 1, got 0"):
        plain(crop=0)
    with pytest.raises(ThresherError, match="one value per channel"):
        Augment([0.5], [0.1, 0.2])


@pytest.mark.gpu
def test_a_gpu_gives_the_same_bits_also_from_a_graph() -> None:
    images, keys = some(512, 32, 32)
    augment = Augment([0.49, 0.48, 0.45], [0.25, 0.24, 0.26], crop=28, cutout=8)
    there, there_keys = images.cuda(), keys.cuda()
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")
    rows = torch.arange(512, device="cuda")
    augment(there, there_keys, epoch, 5, rows=rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = augment(there, there_keys, epoch, 5, rows=rows)
    for number in (0, 3, 17):
        epoch.fill_(number)
        graph.replay()
        assert torch.equal(captured.cpu(), augment(images, keys, number, 5))
    assert torch.equal(augment.evaluate(there).cpu(), augment.evaluate(images))


def test_reflected_padding_mirrors_the_image() -> None:
    """Every result is a crop of what numpy pads."""
    images, keys = some(30)
    padded = np.pad(images.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    augment = plain(crop_padding=2, reflect=True)
    result = augment(images, keys, 1, 5).permute(0, 2, 3, 1).numpy()
    for n in range(30):
        cuts = [padded[n, y : y + 12, x : x + 12] for y in range(5) for x in range(5)]
        assert any(
            np.allclose(result[n], view, atol=1e-3) for cut in cuts for view in (cut, cut[:, ::-1])
        )


def test_alternating_flips_show_both_views_in_two_epochs() -> None:
    images, keys = some(200)
    augment = plain(crop_padding=0, alternate=True)
    epochs = [augment(images, keys, epoch, 7) for epoch in range(4)]
    torch.testing.assert_close(epochs[0].flip(3), epochs[1])
    torch.testing.assert_close(epochs[0], epochs[2])
    torch.testing.assert_close(epochs[1], epochs[3])
    original = images.permute(0, 3, 1, 2).float()
    unchanged = (epochs[0] - original).abs().amax((1, 2, 3)) < 0.01
    assert 70 < unchanged.sum() < 130, "about half begin mirrored"
    assert not torch.equal(augment(images, keys, 0, 8), epochs[0])
    on_device = augment(images, keys, torch.tensor(1), torch.tensor(7))
    torch.testing.assert_close(on_device, epochs[1])
