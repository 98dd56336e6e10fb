"""Comparisons of engines, and of scaling rules on hosts."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from thresher.cli.compare import Compare, compare
from thresher.distributed.local_group import RankOutput
from thresher.distributed.names import Engine
from thresher.errors import ThresherError
from thresher.lab import testbed
from thresher.lab.engines import EngineComparisonConfig, compare_engines, engine_settings
from thresher.lab.rules import RuleRun, SecondsRange, verdicts
from thresher.lab.timeline import covered, horovod_spans, summarize
from thresher.scaling.pipeline import Span

REASON = testbed.unavailable()
HOROVOD = importlib.util.find_spec("horovod") is not None

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
    assert (negotiate.kind, reduce.kind) == ("negotiate", "allreduce")
    assert [negotiate.begin_s, negotiate.end_s] == pytest.approx([0.002, 0.004], abs=1e-6)
    assert [reduce.begin_s, reduce.end_s] == pytest.approx([0.005, 0.007], abs=1e-6)
    file.write_text("{")
    with pytest.raises(ThresherError, match="not a timeline of Horovod"):
        horovod_spans(file, {}, {}, 0)


def test_overlap_counts_each_moment_once() -> None:
    spans = [
        Span("backward", 1.0, 5.0),
        Span("bucket", 2.0, 4.0),
        Span("bucket", 3.0, 6.0),
        Span("bucket", 8.0, 9.0),
    ]
    assert covered(spans, ("bucket",), (0.0, 10.0)) == pytest.approx(5.0)
    assert covered(spans, ("bucket",), (6.5, 7.0)) == 0.0
    seen = summarize(spans)
    assert seen.communication_s == pytest.approx(5.0)
    assert seen.hidden == pytest.approx(3.0 / 5.0)


def test_settings_are_swept_and_refused() -> None:
    ddp = EngineComparisonConfig(engines=("ddp",), bucket_mb=(1.0, 25.0))
    assert [s.bucket_mb for s in engine_settings(ddp)] == [1, 25]
    for change, message in (
        ({"engines": ("dpd",)}, r'engines\[0\] cannot be "dpd"; did you mean "ddp"'),
        ({"bucket_mb": (0.0,)}, r"bucket_mb\[0\] must be greater than 0, got 0"),
        ({"cycle_ms": (1.0, float("inf"))}, r"cycle_ms\[1\] must be finite, got inf"),
        ({"fusion_mb": (-1.0,)}, r"fusion_mb\[0\] must be at least 0, got -1"),
        ({"workers": (0,)}, r"workers\[0\] must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"scaling": "strong", "batch_size": 2}, r"batch_size must be at least .* \(4\)"),
        ({"models": ("tiny", "resnet20")}, "with one of `models`, got tiny, resnet20"),
        ({"compress": ("none", "int8")}, "with one of `compress`, got none, int8"),
    ):
        with pytest.raises(ThresherError, match=message):
            compare_engines(replace(ddp, **change))


def test_lists_are_given_with_commas_on_the_command_line() -> None:
    from thresher.cli.parse import parse

    words = ["--workers", "1,2", "--engines", "ddp", "--bucket-mb", "1,5"]
    config, _ = parse("scale compare", Compare, compare, words)
    assert (config.workers, config.engines, config.bucket_mb) == ((1, 2), ("ddp",), (1.0, 5.0))
    with pytest.raises(ThresherError, match="--workers"):
        parse("scale compare", Compare, compare, ["--workers", "two"])


@pytest.mark.slow  # two groups of workers
def test_engines_are_compared_on_real_workers(tmp_path: Path) -> None:
    """Without Horovod, DDP alone with two bucket sizes."""
    engines: tuple[Engine, ...] = ("ddp", "horovod") if HOROVOD else ("ddp",)
    config = Compare(
        engines=engines,
        workers=(2,),
        models=("alexnet-small",),
        batch_size=2,
        bucket_mb=(1.0, 25.0),
        fusion_mb=(128.0,),
        cycle_ms=(1.0,),
        steps=3,
        image_size=8,
        out=tmp_path,
    )
    data = compare(config).data
    rows = data["rows"]
    assert len(rows) == (3 if HOROVOD else 2)
    assert sorted(r["engine"] for r in rows if r["best"]) == sorted(engines)
    assert max(r["efficiency"] for r in rows) == 1.0
    for row in rows:
        assert row["step_s"] > 0
        assert 0 <= row["hidden"] <= 1
        assert row["batch_size"] == 4
        assert row["communication_s"] > 0
    kinds = {one["kind"] for one in data["timelines"]["ddp"]}
    assert {"forward", "backward", "bucket", "wait", "update"} == kinds
    if HOROVOD:
        kinds = {one["kind"] for one in data["timelines"]["horovod"]}
        assert {"negotiate", "allreduce"} <= kinds
    assert (tmp_path / "compare.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "compare.json").read_text())["model"] == "alexnet-small"


def _run(rule: str, hosts: int, seconds: float | None, seed: int = 0) -> RuleRun:
    status = "finished" if seconds is None else "target"
    reached = (seconds, 9, 90, 0.1, 100.0, 0.4, 0.9)
    return RuleRun("m", rule, "none", hosts, seed, "1gbit", status, *reached)


def test_the_verdict_names_the_rule_that_was_first() -> None:
    runs = [
        _run("one host", 1, 8.0),
        _run("strong", 2, 4.0),
        _run("weak", 2, 5.0),
        _run("weak+linear", 2, None),
    ]
    (verdict,) = verdicts(runs)
    assert (verdict.first, verdict.speed_up, verdict.strong_first) == ("strong", 2.0, True)
    (nobody,) = verdicts([_run("strong", 2, None)])
    assert nobody.first is None
    assert nobody.strong_first is None


def test_the_verdict_is_by_the_mean_of_the_seeds_that_all_got_there() -> None:
    runs = [
        *(_run("strong", 2, seconds, seed) for seed, seconds in enumerate((4.0, 9.0))),
        *(_run("weak", 2, seconds, seed) for seed, seconds in enumerate((5.0, 5.0))),
        *(_run("weak+linear", 2, seconds, seed) for seed, seconds in enumerate((1.0, None))),
    ]
    (verdict,) = verdicts(runs)
    assert (verdict.first, verdict.seconds, verdict.seeds) == ("weak", 5.0, 2)
    assert verdict.rules["strong"] == SecondsRange(6.5, 4.0, 9.0)
    assert verdict.rules["weak+linear"] is None
    # With the first seed the linear rule was ahead of it, with the second plain weak scaling.
    assert verdict.strong_first_in == 0


@pytest.mark.slow  # three groups of workers
def test_a_comparison_of_engines_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two worker counts fails; the next call measures only that one."""
    from thresher.lab import engines as module

    config = Compare(
        engines=("ddp",),
        workers=(1, 2),
        models=("tiny",),
        batch_size=2,
        bucket_mb=(1.0,),
        steps=2,
        image_size=8,
        out=tmp_path,
    )
    counts: list[int] = []
    real = module.run_local

    def watched(workers: int, argv: list[str]) -> list[RankOutput]:
        counts.append(workers)
        if counts == [1, 2]:
            raise ThresherError("the power went")
        return real(workers, argv)

    monkeypatch.setattr(module, "run_local", watched)
    with pytest.raises(ThresherError, match="the power went"):
        compare(config)
    assert not (tmp_path / "compare.json").exists()
    data = compare(config).data
    assert counts == [1, 2, 2]
    assert [row["workers"] for row in data["rows"]] == [1, 2]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["compare.json", "compare.png"]


@pytest.mark.slow  # trains on one host and twice on two
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
        models=("tiny",),
        rules=("strong", "weak+linear"),
        compress=("none",),
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
    # The runs are kept: asking again trains nothing, down to the seconds of each step.
    assert compare(config).data["rows"] == data["rows"]
    # One host is the same run whichever rule is named first, also with a warm-up.
    again = replace(config, hosts=1, rules=("weak+linear+warmup", "strong"))
    assert compare(again).data["rows"] == [one]
    with pytest.raises(ThresherError, match=r'rules\[0\] cannot be "stong"; did you mean "strong"'):
        compare(Compare(hosts=2, rules=("stong",), data=str(pack)))  # type: ignore[arg-type]
