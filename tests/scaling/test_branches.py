"""The critical batch by branching, on real runs."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scaling_profiles import digits_profile

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.cli.plan import plan as plan_command
from thresher.data.sources.base import Block
from thresher.data.write import WriteOptions, write_pack
from thresher.errors import ThresherError
from thresher.scaling import branches
from thresher.scaling.branch_fit import BranchFit
from thresher.scaling.branches import combine
from thresher.scaling.plan import PlanConfig
from thresher.training.train import train


class _Patterns:
    """Four noisy patterns of 8×8 pixels."""

    name = "patterns"
    image_shape: tuple[int, int, int] | None = (8, 8, 1)

    def __init__(self) -> None:
        self.classes = list("abcd")

    def key(self) -> str:
        return self.name

    def chunks(self) -> list[str]:
        return ["all"]

    def read(self, chunk: str) -> Iterator[Block]:
        random = np.random.default_rng(0)
        labels = np.arange(320) % 4
        patterns = random.uniform(60, 190, (4, 8, 8, 1))
        images = patterns[labels] + 50 * random.standard_normal((320, 8, 8, 1))
        splits = 300 * ["train"] + 20 * ["test"]
        ids = [f"{n:03d}" for n in range(320)]
        yield Block(ids, labels, splits, images.clip(0, 255).astype(np.uint8))


def _fit(critical: float, low: float | None = 1.0, high: float | None = 1e6) -> BranchFit:
    draws = tuple(critical * np.exp(0.2 * np.random.default_rng(0).standard_normal(1000)))
    return BranchFit(critical, low, high, {16: 1.0}, 16, draws)


def test_stages_add_up_to_the_samples_of_the_whole() -> None:
    criticals = (30.0, 100.0, 900.0)
    whole, low, high, draws = combine(16, [_fit(critical) for critical in criticals])

    def samples(batch: int) -> float:
        return sum((1 + batch / c) / (1 + 16 / c) for c in criticals) / 3

    for batch in (4, 64, 1024):
        assert (1 + batch / whole) / (1 + 16 / whole) == pytest.approx(samples(batch))
    assert low is not None
    assert high is not None
    assert low < whole < high
    assert low < np.median(draws) < high


def test_a_stage_without_a_bound_leaves_the_high_end_to_the_others() -> None:
    _, low, high, _ = combine(16, [_fit(30), _fit(100, high=None)])
    assert low is not None
    assert high is not None
    assert combine(16, [_fit(30, low=None), _fit(100)])[1] is None
    assert combine(16, [_fit(30, high=None), _fit(100, high=None)])[2] is None
    none = dataclasses.replace(_fit(30), draws=())
    assert combine(16, [none, none])[1:] == (None, None, ())


@pytest.mark.slow  # trains a pilot, a trunk and twenty branches
def test_a_plan_by_branches_resumes_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THRESHER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(branches, "FACTORS", (1.0, 0.5))
    monkeypatch.setattr(branches, "STEPS_LEAST", 6)
    write_pack(_Patterns(), tmp_path / "patterns", WriteOptions(processes=1))
    profile = tmp_path / "p.json"
    dataclasses.replace(digits_profile(), model="tiny", classes=4).save(profile)
    config = PlanConfig(
        data=str(tmp_path / "patterns"),
        cluster="summit",
        critical_batch="branch",
        pilot_epochs=6,
        pilot_seeds=1,
        profile=profile,
        max_workers=2,
    )
    trained = []

    def counted(fail_at: int) -> None:
        def run(run_config: object, quiet: bool = False) -> object:
            trained.append(run_config)
            if len(trained) == fail_at:
                raise KeyboardInterrupt
            return train(run_config, quiet=quiet)  # type: ignore[arg-type]

        monkeypatch.setattr("thresher.training.train.train", run)

    counted(fail_at=9)
    with pytest.raises(KeyboardInterrupt):
        plan_command(config)
    finished = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(finished) == 8
    counted(fail_at=0)
    outcome = plan_command(config)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    data = json.loads(json.dumps(outcome.data))
    pilot = data["pilot"]
    found = pilot["branches"]
    assert found["batches"] == [4, 8, 16, 32]
    assert len(found["stages"]) == 3
    assert [s["samples"] for s in found["stages"]] == pytest.approx(
        [share * pilot["samples"] for share in branches.STAGES], abs=1
    )
    assert data["critical_batch"] == pilot["critical_batch"] == found["critical_batch"]
    for stage in found["stages"]:
        assert set(stage["fit"]["progress"]) == {"4", "8", "16", "32"}
        assert stage["fit"]["within_tolerance"] in found["batches"]
    # One pilot, three parts of the trunk, four batches in three stages and another factor each.
    assert len(found["folders"]) == 3 + 12 + 4
    assert "by branches early, in the middle and late in training" in outcome.text
    assert "draws" not in json.dumps(data)


def test_an_unknown_way_to_measure_is_refused() -> None:
    with pytest.raises(ThresherError, match="critical_batch"):
        plan_command(PlanConfig(data="digits", critical_batch="guess"))  # type: ignore[arg-type]
