"""How long the device waits for images, and what a run says about it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from made_images import class_folder
from thresher import TrainConfig, train
from thresher.data.sources.folder import Folder
from thresher.data.write import write_pack
from thresher.training.device_data import DeviceData, Part
from thresher.training.input_clock import InputClock

START = 0.5


def _parts(waits: list[float]) -> Iterator[Part]:
    for seconds in waits:
        time.sleep(seconds)
        yield Part(torch.arange(2))


def test_only_the_wait_for_the_first_part_is_left_out() -> None:
    clock, parts = InputClock(torch.device("cpu")), _parts([0.2, 0.1, 0.1])
    assert clock.share_after_start(1.0) == 0
    for _ in range(2):
        clock.next(parts)
    waited = clock.take()
    clock.next(parts)
    waited += clock.take()
    # share = later / (seconds - first), and waited = first + later
    share = clock.share_after_start(10.0)
    later = share * (10.0 - waited) / (1 - share)
    assert later >= 0.2
    assert waited - later >= 0.2
    assert clock.take() == 0


def test_a_run_that_waits_only_for_its_first_batch_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pack = write_pack(Folder(class_folder(tmp_path / "images", each=8)), tmp_path / "pack")
    parts = DeviceData.parts

    def slowly(self: DeviceData, *arguments: Any) -> Iterator[Part]:
        time.sleep(START)
        yield from parts(self, *arguments)

    monkeypatch.setattr(DeviceData, "parts", slowly)
    config = TrainConfig(
        data=str(pack.root),
        out=str(tmp_path / "run"),
        epochs=1,
        batch_size=len(pack.indices("train")),
        image_size=16,
        device="cpu",
    )
    result = train(config, quiet=True)
    assert result.steps == 1
    assert result.input_wait_share is not None
    assert result.input_wait_share * result.seconds >= START
    assert "waiting for images" not in caplog.text
