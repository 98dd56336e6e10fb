import dataclasses
import json
from pathlib import Path

import pytest
from scaling_profiles import make_profile

from thresher.cli.scale import Predict, parse_workers
from thresher.cli.scale import predict as predict_command
from thresher.errors import ThresherError
from thresher.scaling.cluster import load
from thresher.scaling.compute import amdahl, from_profile
from thresher.scaling.pipeline import Horovod
from thresher.scaling.predict import Setting, alternatives, predict, step, stops_paying
from thresher.scaling.profile import Profile, at_batch

SUMMIT = load("summit")


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
    (row,) = predict(profile, SUMMIT, [1], Setting())
    assert row.compute_s == pytest.approx(profile.batches[0].step_s)
    assert row.exposed_s == row.communication_s == 0
    assert row.efficiency == pytest.approx(1)
    assert row.limit == "compute"


def test_the_parts_add_up_and_bounds_enclose(profile: Profile) -> None:
    for row in predict(profile, SUMMIT, [1, 6, 96, 1536], Setting()):
        assert row.step_s == pytest.approx(max(row.compute_s + row.exposed_s, row.input_s))
        assert row.step_low_s <= row.step_s <= row.step_high_s
        assert row.efficiency_low <= row.efficiency <= row.efficiency_high + 1e-12
        assert row.images_per_s == pytest.approx(row.batch_size / row.step_s)


def test_weak_efficiency_falls_with_workers_and_with_slower_links(profile: Profile) -> None:
    rows = predict(profile, SUMMIT, [1, 12, 96, 1536], Setting())
    shares = [row.efficiency for row in rows]
    assert shares == sorted(shares, reverse=True)
    slow = load("10gbe")
    same = dataclasses.replace(slow, device=SUMMIT.device)
    assert predict(profile, same, [96], Setting())[0].efficiency < shares[2]


def test_strong_scaling_ends_at_one_sample_a_worker(profile: Profile) -> None:
    rows = predict(profile, SUMMIT, [64, 128], Setting(scaling="strong"))
    assert rows[0].per_worker_batch == 1
    assert rows[1].limit == "batch"
    assert rows[1].images_per_s <= rows[0].images_per_s


def test_layers_that_do_not_scale_are_named_as_the_limit(stiff: Profile) -> None:
    free = dataclasses.replace(
        SUMMIT, inner_bytes_s=1e13, outer_bytes_s=1e13, inner_latency_s=1e-9, outer_latency_s=1e-9
    )
    row = predict(stiff, free, [64], Setting(scaling="strong"))[0]
    assert row.limit == "small batches"
    bound = amdahl(stiff)
    # Twenty times 10 ms stay, of a step of 64·3 ms + 200 ms + 1 ms.
    assert bound["serial"] == pytest.approx(0.201 / 0.393, rel=1e-3)
    assert row.efficiency * 64 < bound["bound"]


def test_input_is_a_limit_where_the_file_system_is_slow(profile: Profile) -> None:
    starved = dataclasses.replace(SUMMIT, storage_bytes_s=1e6, storage_node_bytes_s=1e6)
    row = predict(profile, starved, [6], Setting())[0]
    assert row.limit == "input"
    assert row.step_s == row.input_s


def test_cores_that_are_shared_give_no_speed_up(profile: Profile) -> None:
    shared = dataclasses.replace(SUMMIT, shared_cores=2, devices_per_node=4, nodes=1)
    one, two, four = (
        step(profile, shared, w, Setting(scaling="strong")).compute_s for w in (1, 2, 4)
    )
    assert two < one
    # Four workers on two cores: a quarter of the batch each, at half the speed.
    assert four == pytest.approx(two, rel=0.1)


def test_horovod_negotiation_hurts_at_scale(profile: Profile) -> None:
    queue = Horovod(cycle_s=5e-3, fusion_bytes=64 * 2**20)
    both = [
        predict(profile, SUMMIT, [1536], Setting(engine=engine, horovod=queue))[0]
        for engine in ("ddp", "horovod")
    ]
    assert both[1].exposed_s > both[0].exposed_s


def test_alternatives_cover_algorithms_precisions_compressions_and_engines(
    profile: Profile,
) -> None:
    found = alternatives(profile, SUMMIT, [1, 96], Setting())
    assert {"ring", "tree", "hierarchical", "torus"} <= {a["allreduce"] for a in found}
    assert {"fp32", "fp16"} <= {a["precision"] for a in found}
    assert {"none", "fp16", "int8", "topk:0.01", "powersgd:4"} == {a["compress"] for a in found}
    assert {"ddp", "horovod"} == {a["engine"] for a in found}


def test_where_it_stops_paying(profile: Profile) -> None:
    slow = dataclasses.replace(load("10gbe"), device=SUMMIT.device)
    rows = predict(profile, slow, [1, 2, 4, 8, 16, 32, 64, 128], Setting(scaling="strong"))
    stop = stops_paying(rows)
    assert stop is not None
    assert stop.workers > 1
    assert stops_paying(rows[:1]) is None


def test_impossible_workers_are_refused(profile: Profile) -> None:
    with pytest.raises(ThresherError, match="there cannot be 0 workers"):
        predict(profile, SUMMIT, [0], Setting())
    with pytest.raises(ThresherError, match="has 27,648 devices, not 30,000"):
        predict(profile, SUMMIT, [30_000], Setting())
    with pytest.raises(ThresherError, match="not a list of numbers"):
        parse_workers("1,two")


def test_times_between_measured_batches(profile: Profile) -> None:
    times = {1: 1.0, 4: 2.0, 16: 8.0}
    assert at_batch(times, 4) == 2.0
    assert at_batch(times, 2) == pytest.approx(2**0.5)
    assert at_batch(times, 32) == 16.0
    assert at_batch(times, 0.5) == 1.0
    work = from_profile(profile, 64)
    assert [g.size for g in work.gradients] == [4_000_000] * 10
    assert work.gradients[-1].ready_s == pytest.approx(work.backward_s)


def test_a_profile_survives_its_file_and_another_models_is_refused(
    profile: Profile, profile_file: Path
) -> None:
    assert Profile.load(profile_file, "tiny") == profile
    with pytest.raises(ThresherError, match="is of the model tiny, not resnet18"):
        Profile.load(profile_file, "resnet18")
    with pytest.raises(ThresherError, match="resnet18"):
        predict_command(Predict(profile_file, "summit", model="resnet18"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a profile"),
        ("{", "does not parse"),
        ('{"format": 1, "layers": []}', "lacks"),
    ],
)
def test_a_damaged_profile_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ThresherError, match=message):
        Profile.load(tmp_path / "p.json")


def test_the_command_gives_the_promised_columns(profile_file: Path) -> None:
    outcome = predict_command(Predict(profile_file, "summit", workers="1,8,64,512,1536"))
    rows = json.loads(json.dumps(outcome.data))["rows"]
    assert [row["workers"] for row in rows] == [1, 8, 64, 512, 1536]
    promised = "workers compute_s communication_s exposed_s input_s step_s images_per_s efficiency"
    assert {*promised.split(), "limit"} <= set(rows[0])
    assert "It stops paying" in outcome.text or "Every step up" in outcome.text
