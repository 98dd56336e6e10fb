"""Engines side by side, and scaling rules on hosts."""

import json
from pathlib import Path

import pytest

from thresher.cli.compare import Compare, compare
from thresher.distributed import testbed
from thresher.distributed.horovod import installed
from thresher.errors import ThresherError
from thresher.scaling.compare import settings
from thresher.scaling.compare_rules import Trial, verdicts
from thresher.scaling.timeline import covered, horovod_spans, span, summary

REASON = testbed.why_not()

EVENTS = """[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":5000000}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.gradient.w"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1000, "pid": 1},
{"ph": "X", "name": "0", "ts": 1500, "pid": 1, "dur": 0},{"ph": "E", "ts": 3000, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 3100, "pid": 1},
{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 3500, "pid": 1},{"ph": "E", "ts": 6000, "pid": 1},
{"ph": "E", "ts": 6100, "pid": 1, "args": {"dtype": "float32"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 11000, "pid": 1},
{"ph": "E", "ts": 12000, "pid": 1},
{"ph": "B", "name": "GLOO_ALLREDUCE", "ts": 13000, "pid": 1},{"ph": "E", "ts": 15000, "pid": 1},
"""


def test_horovods_timeline_is_read_also_when_it_was_cut_off(tmp_path: Path) -> None:
    """The second step's gradient was made 10 ms after Horovod began, at 5.010 s."""
    file = tmp_path / "timeline.json"
    file.write_text(EVENTS)
    negotiate, reduce = horovod_spans(file, {"w": 5.010}, {"w": 400}, begin=5.008)
    assert (negotiate["kind"], reduce["kind"]) == ("negotiate", "allreduce")
    assert [negotiate["begin_s"], negotiate["end_s"]] == pytest.approx([0.002, 0.004], abs=1e-6)
    assert [reduce["begin_s"], reduce["end_s"]] == pytest.approx([0.005, 0.007], abs=1e-6)
    file.write_text("{")
    with pytest.raises(ThresherError, match="not a timeline of Horovod"):
        horovod_spans(file, {}, {}, 0)


def test_overlap_counts_each_moment_once() -> None:
    spans = [
        span("backward", 1.0, 5.0),
        span("bucket", 2.0, 4.0),
        span("bucket", 3.0, 6.0),
        span("bucket", 8.0, 9.0),
    ]
    assert covered(spans, ("bucket",), (0.0, 10.0)) == pytest.approx(5.0)
    assert covered(spans, ("bucket",), (6.5, 7.0)) == 0.0
    seen = summary(spans)
    assert seen["communication_s"] == pytest.approx(5.0)
    assert seen["hidden"] == pytest.approx(3.0 / 5.0)


def test_settings_are_swept_and_refused() -> None:
    assert [s.bucket_mb for s in settings(["ddp"], [1, 25], [64], [1])] == [1, 25]
    with pytest.raises(ThresherError, match='no engine "dpd"; did you mean "ddp"'):
        settings(["dpd"], [1], [1], [1])
    with pytest.raises(ThresherError, match="bucket of 0 means nothing"):
        settings(["ddp"], [0], [1], [1])
    with pytest.raises(ThresherError, match=r'--workers "two" is not a list of numbers'):
        compare(Compare(engines="ddp", workers="two"))


def test_engines_are_compared_on_real_workers(tmp_path: Path) -> None:
    """Without Horovod, DDP alone with two bucket sizes."""
    engines = "ddp,horovod" if installed() else "ddp"
    config = Compare(
        engines=engines,
        workers="2",
        models="alexnet-small",
        batch_size=2,
        bucket_mb="1,25",
        fusion_mb="128",
        cycle_ms="1",
        steps=3,
        image_size=8,
        out=tmp_path,
    )
    data = compare(config).data
    rows = data["rows"]
    assert len(rows) == (3 if installed() else 2)
    assert sorted(r["engine"] for r in rows if r["best"]) == engines.split(",")
    assert max(r["efficiency"] for r in rows) == 1.0
    for row in rows:
        assert row["step_s"] > 0
        assert 0 <= row["hidden"] <= 1
        assert row["batch_size"] == 4
        assert row["communication_s"] > 0
    kinds = {one["kind"] for one in data["timelines"]["ddp"]}
    assert {"forward", "backward", "bucket", "wait", "update"} == kinds
    if installed():
        kinds = {one["kind"] for one in data["timelines"]["horovod"]}
        assert {"negotiate", "allreduce"} <= kinds
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "compare.json").read_text())["model"] == "alexnet-small"


def _trial(rule: str, hosts: int, seconds: float | None) -> Trial:
    status = "finished" if seconds is None else "target"
    return Trial("m", rule, "none", hosts, "1gbit", status, seconds, 9, 90, 0.1, 100.0, 0.4, 0.9)


def test_the_verdict_names_the_rule_that_was_first() -> None:
    trials = [
        _trial("one host", 1, 8.0),
        _trial("strong", 2, 4.0),
        _trial("weak", 2, 5.0),
        _trial("weak+linear", 2, None),
    ]
    (verdict,) = verdicts(trials)
    assert (verdict["first"], verdict["speed_up"], verdict["strong_first"]) == ("strong", 2.0, True)
    (nobody,) = verdicts([_trial("strong", 2, None)])
    assert nobody["first"] is None
    assert nobody["strong_first"] is None


@pytest.mark.skipif(REASON is not None, reason=f"no test bed: {REASON}")
def test_rules_are_compared_on_hosts(tmp_path: Path) -> None:
    """Strong scaling takes the path of one host: the same loss after the same steps."""
    from thresher.data.sources.digits import Digits
    from thresher.data.write import write_pack

    pack = tmp_path / "digits"
    write_pack(Digits(), pack)
    config = Compare(
        hosts=2,
        link="1gbit",
        models="tiny",
        rules="strong,weak+linear",
        compress="none",
        data=str(pack),
        batch_size=256,
        epochs=1.0,
        target_loss=0.0001,
        out=tmp_path,
    )
    data = compare(config).data
    one, strong, weak = data["rows"]
    assert (one["rule"], strong["rule"], weak["rule"]) == ("one host", "strong", "weak+linear")
    assert one["steps"] == strong["steps"] > weak["steps"]
    assert data["verdicts"][0]["first"] is None
    assert (tmp_path / "compare.png").exists()
    with pytest.raises(ThresherError, match='no scaling rule "stong"; did you mean "strong"'):
        compare(Compare(hosts=2, rules="stong", data=str(pack)))
