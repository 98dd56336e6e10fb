import dataclasses
import json
from pathlib import Path

import pytest
from scaling_profiles import make_profile

from thresher.cli.scale import Predict
from thresher.cli.scale import predict as predict_command
from thresher.errors import ThresherError
from thresher.scaling.catalog import load_cluster
from thresher.scaling.compute import amdahl, from_profile
from thresher.scaling.predict import (
    PredictConfig,
    alternatives,
    predict,
    predict_rows,
    stops_paying,
)
from thresher.scaling.profile import Profile, at_batch
from thresher.scaling.step import StepConfig, predict_step

SUMMIT = load_cluster("summit")


@pytest.fixture
def profile() -> Profile:
    return make_profile()


@pytest.fixture
def stiff() -> Profile:
    """Layers that keep 10 ms whatever the batch."""
    return make_profile(fixed_s=0.01)


@pytest.fixture
def profile_file(tmp_path: Path, profile: Profile) -> Path:
    profile.save(tmp_path / "profile.json")
    return tmp_path / "profile.json"


def test_one_worker_is_what_was_measured(profile: Profile) -> None:
    (row,) = predict_rows(profile, SUMMIT, [1], StepConfig())
    assert row.compute_s == pytest.approx(profile.batches[0].step_s)
    assert row.exposed_s == row.communication_s == 0
    assert row.efficiency == pytest.approx(1)
    assert row.limit == "compute"


def test_the_parts_add_up_and_bounds_enclose(profile: Profile) -> None:
    for row in predict_rows(profile, SUMMIT, [1, 6, 96, 1536], StepConfig()):
        assert row.step_s == pytest.approx(max(row.compute_s + row.exposed_s, row.input_s))
        assert row.step_low_s <= row.step_s <= row.step_high_s
        assert row.efficiency_low <= row.efficiency <= row.efficiency_high + 1e-12
        assert row.images_per_s == pytest.approx(row.batch_size / row.step_s)


def test_weak_efficiency_falls_with_workers_and_with_slower_links(profile: Profile) -> None:
    rows = predict_rows(profile, SUMMIT, [1, 12, 96, 1536], StepConfig())
    shares = [row.efficiency for row in rows]
    assert shares == sorted(shares, reverse=True)
    slow = load_cluster("10gbe")
    same = dataclasses.replace(slow, device=SUMMIT.device)
    assert predict_rows(profile, same, [96], StepConfig())[0].efficiency < shares[2]


def test_strong_scaling_ends_at_one_sample_a_worker(profile: Profile) -> None:
    rows = predict_rows(profile, SUMMIT, [64, 128], StepConfig(scaling="strong"))
    assert rows[0].per_worker_batch == 1
    assert rows[1].limit == "batch"
    assert rows[1].images_per_s <= rows[0].images_per_s


def test_layers_that_do_not_scale_are_named_as_the_limit(stiff: Profile) -> None:
    free = dataclasses.replace(
        SUMMIT, inner_bytes_s=1e13, outer_bytes_s=1e13, inner_latency_s=1e-9, outer_latency_s=1e-9
    )
    row = predict_rows(stiff, free, [64], StepConfig(scaling="strong"))[0]
    assert row.limit == "small batches"
    bound = amdahl(stiff)
    # Twenty times 10 ms stay, of a step of 64·3 ms + 200 ms + 1 ms.
    assert bound.serial == pytest.approx(0.201 / 0.393, rel=1e-3)
    assert row.efficiency * 64 < bound.bound


def test_input_is_a_limit_where_the_file_system_is_slow(profile: Profile) -> None:
    starved = dataclasses.replace(SUMMIT, storage_bytes_s=1e6, storage_node_bytes_s=1e6)
    row = predict_rows(profile, starved, [6], StepConfig())[0]
    assert row.limit == "input"
    assert row.step_s == row.input_s


def test_cores_that_are_shared_give_no_speed_up(profile: Profile) -> None:
    shared = dataclasses.replace(SUMMIT, shared_cores=2, devices_per_node=4, nodes=1)
    one, two, four = (
        predict_step(profile, shared, w, StepConfig(scaling="strong")).compute_s for w in (1, 2, 4)
    )
    assert two < one
    # Four workers on two cores: a quarter of the batch each, at half the speed.
    assert four == pytest.approx(two, rel=0.1)


def test_horovod_negotiation_hurts_at_scale(profile: Profile) -> None:
    config = StepConfig(cycle_ms=5.0, fusion_mb=64.0)
    (ddp,) = predict_rows(profile, SUMMIT, [1536], config)
    config = dataclasses.replace(config, engine="horovod")
    (horovod,) = predict_rows(profile, SUMMIT, [1536], config)
    assert horovod.exposed_s > ddp.exposed_s


def test_alternatives_cover_algorithms_precisions_compressions_and_engines(
    profile: Profile,
) -> None:
    found = alternatives(profile, SUMMIT, [1, 96], StepConfig())
    assert {"ring", "tree", "hierarchical", "torus"} <= {a.allreduce for a in found}
    assert {"fp32", "fp16"} <= {a.precision for a in found}
    assert {"none", "fp16", "int8", "topk:0.01", "powersgd:2"} == {a.compress for a in found}
    assert {"ddp", "horovod"} == {a.engine for a in found}


def test_where_it_stops_paying(profile: Profile) -> None:
    slow = dataclasses.replace(load_cluster("10gbe"), device=SUMMIT.device)
    rows = predict_rows(profile, slow, [1, 2, 4, 8, 16, 32, 64, 128], StepConfig(scaling="strong"))
    stop = stops_paying(rows)
    assert stop is not None
    assert stop.workers > 1
    assert stops_paying(rows[:1]) is None


def test_impossible_workers_are_refused(profile: Profile) -> None:
    with pytest.raises(ThresherError, match=r"workers must be in \[1, 27,648\] .*, got 0"):
        predict_rows(profile, SUMMIT, [0], StepConfig())
    with pytest.raises(ThresherError, match=r"workers must be in \[1, 27,648\] .*, got 30,000"):
        predict_rows(profile, SUMMIT, [30_000], StepConfig())


def test_times_between_measured_batches(profile: Profile) -> None:
    times = {1: 1.0, 4: 2.0, 16: 8.0}
    assert at_batch(times, 4) == 2.0
    assert at_batch(times, 2) == pytest.approx(2**0.5)
    assert at_batch(times, 32) == 16.0
    assert at_batch(times, 0.5) == 1.0
    work = from_profile(profile, 64)
    assert [g.bytes for g in work.gradients] == [4_000_000] * 10
    assert work.gradients[-1].ready_s == pytest.approx(work.backward_s)


def test_a_profile_survives_its_file_and_another_models_is_refused(
    profile: Profile, profile_file: Path
) -> None:
    assert Profile.load(profile_file, "tiny") == profile
    with pytest.raises(ThresherError, match="is of model tiny, not resnet18"):
        Profile.load(profile_file, "resnet18")
    with pytest.raises(ThresherError, match="resnet18"):
        predict(PredictConfig(profile=profile_file, cluster="summit", model="resnet18"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a profile"),
        ("{", "is not valid JSON"),
        ('{"format": 1, "layers": []}', "model is required"),
    ],
)
def test_a_damaged_profile_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ThresherError, match=message):
        Profile.load(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["model"], None, "model must be text, got None"),
        (["batch_size"], None, "batch_size must be an integer, got None"),
        (["batch_size"], 0, "batch_size must be at least 1, got 0"),
        (["device"], None, "device must be a table, got None"),
        (["device", "name"], None, "device.name must be text, got None"),
        (["layers"], None, "layers must be a list, got None"),
        (["layers"], [], "has no times of some layers"),
        (["layers", 0], None, r"layers\[0\] must be a table, got None"),
        (["layers", 0, "forward_s"], {}, "has no times of some layers"),
        (["layers", 0, "forward_s"], {"64": None}, r"layers\[0\].forward_s.64 must be a number"),
        (["layers", 0, "forward_s"], {"64": -1}, "forward_s.64 must be at least 0, got -1"),
        (["layers", 0, "forward_s"], {"many": 1}, "forward_s must be an integer, got 'many'"),
        (["layers", 0, "flops"], float("nan"), r"layers\[0\].flops must be at least 0, got nan"),
        (["batches"], [], "has no times of some layers"),
        (["batches", 0, "step_s"], "fast", r"batches\[0\].step_s must be a number, got 'fast'"),
        (["input"], {"pack": "x"}, "input.samples is required"),
        (["overlap"], 5, "overlap must be a table, got 5"),
        (["format"], 2, "not a profile of format 1"),
    ],
)
def test_a_field_of_a_wrong_type_or_value_is_refused(
    profile_file: Path, path: list[str | int], value: object, message: str
) -> None:
    raw = json.loads(profile_file.read_text())
    *above, last = path
    part = raw
    for key in above:
        part = part[key]
    part[last] = value
    profile_file.write_text(json.dumps(raw))
    with pytest.raises(ThresherError, match=message) as raised:
        Profile.load(profile_file)
    assert str(profile_file) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workers": (0,)}, r"workers\[0\] must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"cycle_ms": float("inf")}, "cycle_ms must be finite, got inf"),
        ({"fusion_mb": 0.0}, "fusion_mb must be greater than 0, got 0"),
        ({"bucket_mb": float("nan")}, "bucket_mb must be greater than 0, got nan"),
        ({"scaling": "stong"}, 'scaling cannot be "stong"; did you mean "strong"'),
        ({"compress": "zip"}, 'unknown compression "zip"'),
    ],
)
def test_impossible_options_are_refused(
    profile_file: Path, change: dict[str, object], message: str
) -> None:
    config = PredictConfig(profile=profile_file, cluster="summit")
    with pytest.raises(ThresherError, match=message):
        predict(dataclasses.replace(config, **change))  # type: ignore[arg-type]


def test_by_default_workers_grow_to_the_size_of_the_cluster(
    profile_file: Path, tmp_path: Path
) -> None:
    rows = predict(PredictConfig(profile=profile_file, cluster="summit")).rows
    assert [row.workers for row in rows] == [2**k for k in range(13)]
    small = load_cluster_text("summit").replace("nodes = 4608", "nodes = 2")
    (tmp_path / "small.toml").write_text(small)
    rows = predict(PredictConfig(profile=profile_file, cluster=str(tmp_path / "small.toml"))).rows
    assert [row.workers for row in rows] == [1, 2, 4, 8]


def load_cluster_text(name: str) -> str:
    from importlib import resources

    return resources.files("thresher.scaling").joinpath("clusters", f"{name}.toml").read_text()


def test_the_command_gives_the_promised_columns(profile_file: Path) -> None:
    config = Predict(profile=profile_file, cluster="summit", workers=(1, 8, 64, 512, 1536))
    outcome = predict_command(config)
    rows = json.loads(json.dumps(outcome.data))["rows"]
    assert [row["workers"] for row in rows] == [1, 8, 64, 512, 1536]
    promised = "workers compute_s communication_s exposed_s input_s step_s images_per_s efficiency"
    assert {*promised.split(), "limit"} <= set(rows[0])
    assert "Scaling stops paying off" in outcome.text or "Every increase" in outcome.text


def test_workers_are_given_with_commas_on_the_command_line(
    profile_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from thresher.cli.main import main

    command = ["scale", "predict", "--profile", str(profile_file), "--cluster", "summit", "--json"]
    for words in (["--workers", "1,8"], ["--workers=1,8"], ["--workers", "1", "8"]):
        with pytest.raises(SystemExit) as ended:
            main([*command, *words])
        assert ended.value.code == 0
        assert [row["workers"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1, 8]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--workers", "1,two"])
    assert ended.value.code == 2
    assert "--workers" in capsys.readouterr().err
