"""Progress off a terminal: the time left is estimated from what this run did."""

import io
import os

import pytest

from thresher import progress


def test_what_was_finished_before_does_not_shorten_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.bar("study", 100, "trials") as bar:
        bar.resume(90)
        now += 10
        bar.advance()
    assert "study: 91/100 trials (91 %), 90 s left" in capsys.readouterr().err


def test_the_time_left_is_not_given_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.bar("study", 100, "trials") as bar:
        now += 10
        bar.resume(90)
    assert "study: 90/100 trials (90 %)\n" in capsys.readouterr().err


def test_preparation_is_shown_and_does_not_count_for_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.bar("study", 10, "trials") as bar:
        now += 40
        bar.prepare("network")
        now += 6
        bar.advance()
    first, then, _ = capsys.readouterr().err.splitlines()
    assert first == "study: 0/10 trials (0 %) · network"
    assert then.startswith("study: 1/10 trials (10 %), 54 s left")


def test_work_goes_on_if_nobody_reads_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.FileIO(write, "w")))
    with progress.bar("training", 2, "steps") as bar:
        bar.advance()
        bar.advance()
    assert bar.done == 2
