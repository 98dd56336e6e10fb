"""Queues of a GPU; what they are for is measured by `benchmarks.imagenet_training`."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from thresher.training import gpu_streams
from thresher.training.gpu_streams import QUEUES, few_queues, open_queues, stream_of_steps
from thresher.training.input_remarks import warn_of_waiting

MPS = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_streams, "has_gpu_files", lambda: True)
    # Set first, so that what a test writes is undone.
    for name in (QUEUES, MPS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_a_run_asks_for_all_queues() -> None:
    assert few_queues()
    open_queues()
    assert os.environ[QUEUES] == "32"
    assert not few_queues()


def test_without_a_gpu_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_streams, "has_gpu_files", lambda: False)
    open_queues()
    assert QUEUES not in os.environ


def test_what_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(QUEUES, "1")
    open_queues()
    assert os.environ[QUEUES] == "1"
    assert few_queues()


def test_processes_that_share_a_gpu_leave_the_queues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS, "/folder")
    open_queues()
    assert QUEUES not in os.environ


def test_only_a_run_on_one_gpu_connects_early(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = []
    monkeypatch.setattr(gpu_streams, "start_gpu", lambda triton: connected.append(triton))
    for device, workers in (("cpu", 1), ("auto", 2), ("cuda", 8), ("cuda:1", 1)):
        gpu_streams.connect_early(device, workers)
    assert connected == []
    gpu_streams.connect_early("auto", 1)
    gpu_streams.connect_early("cuda", 1)
    assert connected == [True, True]


def test_waiting_for_a_gpu_with_few_queues_names_the_variable(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader: Any = SimpleNamespace(device=torch.device("cuda"), device_crops=object())
    warn_of_waiting(0.3, loader)
    assert f"set {QUEUES}=32" in caplog.text
    caplog.clear()
    monkeypatch.setenv(QUEUES, "32")
    warn_of_waiting(0.3, loader)
    assert "30 % of the time" in caplog.text
    assert QUEUES not in caplog.text


def test_a_run_that_decodes_elsewhere_has_no_stream_of_its_own() -> None:
    with stream_of_steps(torch.device("cpu"), decodes=False) as stream:
        assert stream is None
