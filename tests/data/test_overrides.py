"""Decisions survive crashes and other processes, and undo restores exactly what was."""

import dataclasses
import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from thresher.data.overrides import Override, OverrideLog, effective_overrides, undo_stacks
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import InvalidValueError, ThresherError

IDS = ["a", "b", "c", "d"]
BASE = {"a": True, "b": False, "c": True, "d": False}


def saved(folder: Path) -> Selection:
    selection = Selection(
        ids=list(IDS),
        labels=np.zeros(4, np.int64),
        keep=np.array([BASE[id] for id in IDS]),
        score=np.zeros(4, np.float32),
        reason=["", "noise", "", "noise"],
        fingerprint="f" * 32,
    )
    return selection.save(folder / "s.parquet")


def log_of(folder: Path) -> OverrideLog:
    return OverrideLog(folder / "s.overrides.jsonl")


def decide(log: OverrideLog, ids: list[str], keep: bool, reason: str = "") -> Override:
    return log.decide(ids, keep, reason, [BASE[id] for id in ids])


def test_undo_restores_a_mixed_state_and_its_reasons(tmp_path: Path) -> None:
    saved(tmp_path)
    log = log_of(tmp_path)
    decide(log, ["a"], False, "blurred")
    entry = decide(log, ["a", "b", "c"], True, "all fine")
    assert entry.previous == [False, False, True]
    loaded = Selection.load(tmp_path / "s.parquet")
    assert loaded.keep.tolist() == [True, True, True, False]
    undone = log.undo(BASE)
    assert undone is not None
    assert undone.previous == [True, True, True]
    loaded = Selection.load(tmp_path / "s.parquet")
    assert loaded.keep.tolist() == [False, False, True, False]
    assert loaded.reason == ["override: blurred", "noise", "", "noise"]
    log.redo(BASE)
    assert Selection.load(tmp_path / "s.parquet").keep.tolist() == [True, True, True, False]


def test_lines_have_a_format_version(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    decide(log, ["a"], False, "blurred")
    record = json.loads(log.path.read_text())
    assert record.pop("format") == 1
    log.path.write_text(json.dumps(record) + "\n")  # as written before versions were stored
    assert [entry.reason for entry in log.read()] == ["blurred"]
    decide(log, ["b"], True)  # appended to an old log
    assert len(log.read()) == 2
    with open(log.path, "a") as file:
        file.write(json.dumps({**record, "format": 3, "confidence": 0.5}) + "\n")
    newer = r"line 3 of .*jsonl was written by a newer version of Thresher \(format 3, "
    with pytest.raises(InvalidValueError, match=newer):
        log.read()


def test_nothing_to_undo_writes_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    assert log.undo(BASE) is None
    decide(log, ["a"], False)
    assert log.undo(BASE) is not None
    assert log.undo(BASE) is None
    assert log.redo(BASE) is not None
    assert log.redo(BASE) is None
    assert [entry.kind for entry in log.read()] == ["set", "undo", "redo"]


def test_a_new_decision_forgets_what_was_undone(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    decide(log, ["a"], False)
    log.undo(BASE)
    decide(log, ["b"], True)
    assert log.redo(BASE) is None
    done, undone = undo_stacks(log.read())
    assert [list(entry.ids) for entry in done] == [["b"]]
    assert undone == []


def test_a_cut_line_is_skipped_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    decide(log, ["a"], False)
    with open(log.path, "ab") as file:
        file.write(b'{"time": 1.0, "kind": "set", "ids": ["c"], "ke')
    assert set(effective_overrides(log.read())) == {"a"}
    decide(log, ["b"], True)
    assert set(effective_overrides(log.read())) == {"a", "b"}


def test_lines_are_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of the page parsed the whole log."""
    parsed = []
    parse = OverrideLog._parse

    def counted(log: OverrideLog, record: object, number: int) -> Override:
        parsed.append(number)
        return parse(log, record, number)

    monkeypatch.setattr(OverrideLog, "_parse", counted)
    log, other = log_of(tmp_path), log_of(tmp_path)
    for number in range(9):
        decide(log if number % 2 else other, [IDS[number % 4]], number % 3 == 0, str(number))
    assert [entry.reason for entry in log.read()] == [*"012345678"]
    parsed.clear()
    decide(other, ["a"], True, "9")
    other.read().clear()
    assert [entry.reason for entry in log.read()] == [*"0123456789"]
    assert sorted(parsed) == [9, 10, 10]  # a log reads before it writes a line


def test_lines_that_were_changed_or_removed_are_read_again(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(3):
        decide(log, ["a"], True, str(number))
    assert len(log.read()) == 3
    lines = log.path.read_bytes().splitlines(keepends=True)
    changed = lines[1].replace(b'"reason": "1"', b'"reason": "7"')
    for content, expected in (
        ([lines[0], changed, lines[2]], "072"),
        ([lines[0], lines[2]], "02"),
        ([lines[0], lines[2], lines[1][:-9]], "02"),  # another process is writing
        ([lines[0], lines[2], lines[1][:-1]], "021"),
        ([lines[0], lines[2], lines[1], lines[0]], "0210"),
        ([], ""),
    ):
        log.path.write_bytes(b"".join(content))
        assert "".join(entry.reason for entry in log.read()) == expected
    log.path.unlink()
    assert log.read() == []
    log.path.write_bytes(lines[2] + b"[]\n")
    with pytest.raises(ThresherError, match="line 2 of"):
        log.read()


def test_a_line_that_is_no_decision_is_named(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    decide(log, ["a"], False)
    with open(log.path, "a") as file:
        file.write(json.dumps({"ids": "a", "keep": True}) + "\n")
    with pytest.raises(ThresherError, match=r"line 2 .* is not a decision"):
        log.read()


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1]},
        {"ids": None},
        {"keep": 1},
        {"keep": None},
        {"reason": 3},
        {"previous": "yes"},
        {"previous": [1]},
        {"time": "now"},
        {"time": float("nan")},
        {"time": 10**400},
        {"kind": "sett"},
        {"kind": []},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    line = {"ids": ["a"], "keep": True, "reason": "", "previous": [True], "time": 1, "kind": "set"}
    log = log_of(tmp_path)
    log.path.write_text(json.dumps({**line, **change}) + "\n")
    with pytest.raises(InvalidValueError, match=r"line 1 .* is not a decision"):
        log.read()


def test_an_override_of_a_stranger_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    log_of(tmp_path).decide(["nobody"], True, "", [True])
    with pytest.raises(ThresherError, match="nobody"):
        Selection.load(tmp_path / "s.parquet")


def _append_many(path: str, id: str) -> None:
    log = OverrideLog(Path(path))
    for n in range(40):
        log.decide([id], n % 2 == 0, f"{os.getpid()}", [True])


@pytest.mark.slow
def test_two_processes_append_without_tearing(tmp_path: Path) -> None:
    path = tmp_path / "s.overrides.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append_many, args=(str(path), id)) for id in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    entries = OverrideLog(path).read()
    assert len(entries) == 80
    for id in "ab":
        states = [(entry.previous[0], entry.keep) for entry in entries if entry.ids == [id]]
        assert states[0] == (True, True)
        assert states[1:] == [(n % 2 == 1, n % 2 == 0) for n in range(1, 40)]


@pytest.mark.parametrize("use", ["indices", "apply", "sampler", "keeps"])
def test_decisions_made_after_loading_are_mentioned(
    digits: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, use: str
) -> None:
    pack = Pack.open(digits)
    ids = pack.ids.take(pack.indices("train")).to_pylist()
    selection = Selection(
        ids=ids,
        labels=pack.labels[pack.indices("train")],
        keep=np.ones(len(ids), bool),
        score=np.zeros(len(ids), np.float32),
        reason=[""] * len(ids),
        fingerprint=pack.fingerprint,
    ).save(tmp_path / "s.parquet")

    def kept(selection: Selection) -> int:
        if use == "indices":
            return len(selection.indices(pack))
        if use == "keeps":
            return sum(map(selection.keeps, ids))
        data = pack.dataset()
        if use == "apply":
            return len(selection.apply(data))
        return len(selection.sampler(data, rank=0, world=1))

    log = log_of(tmp_path)
    for _ in range(2):  # of a selection that was just made, and of one that was loaded
        assert kept(dataclasses.replace(selection)) == selection.kept
        assert not caplog.messages
        log.decide(ids[selection.dropped :][:1], False, "", [True])  # a page in a notebook
        stale = dataclasses.replace(selection)
        assert [kept(stale), kept(dataclasses.replace(stale))] == [selection.kept] * 2
        (message,) = caplog.messages
        assert message.startswith(f"decisions were made in {log.path} since the selection was")
        caplog.clear()
        selection = Selection.load(tmp_path / "s.parquet")
    assert Selection.load(tmp_path / "s.parquet", overrides=False).kept == len(ids)
