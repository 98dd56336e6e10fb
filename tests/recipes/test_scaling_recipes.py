"""The recipes that predict; they run no network."""

from pathlib import Path
from statistics import median

import pytest

from thresher.recipes import find


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return find("jitsev-records").run("smoke", tmp_path_factory.mktemp("records")).rows


def test_records_are_within_a_third_at_the_median(records: list[dict[str, float]]) -> None:
    assert len(records) == 8
    assert median(abs(r["predicted_s"] / r["published_s"] - 1) for r in records) <= 0.30


def test_no_record_is_beyond_a_factor_of_two_unless_explained(
    records: list[dict[str, float]],
) -> None:
    for r in records:
        assert 0.5 <= r["ratio"] <= 2 or r["note"]
    assert sum(not 0.5 <= r["ratio"] <= 2 for r in records) <= 1


def test_published_times_are_the_tables(records: list[dict[str, float]]) -> None:
    minutes = [round(r["published_s"] / 60, 1) for r in records]
    assert minutes == [29 * 60, 60, 30, 15, 6.6, 1.8, 2.0, 1.2]


def test_a_row_does_not_teach_its_own_prediction() -> None:
    from dataclasses import replace

    from thresher.models.registry import build
    from thresher.scaling.records import RECORDS, leave_one_out
    from thresher.scaling.skeleton import skeleton

    profile = skeleton(build("resnet50", 1000), "resnet50", (3, 224, 224), 1000, 32)
    few = RECORDS[:3]
    before = leave_one_out(profile, few)[0].predicted_s
    changed = (replace(few[0], published_s=few[0].published_s * 5), *few[1:])
    assert leave_one_out(profile, changed)[0].predicted_s == before


def test_fig8_puts_ddp_above_horovod_and_draws(tmp_path: Path) -> None:
    result = find("ornl-fig8").run("smoke", tmp_path)
    curves = result.data["efficiency"]
    for ours, theirs in zip(curves["ddp, ring"], curves["horovod, ring"], strict=True):
        assert ours >= theirs - 1e-9
    assert result.rows[0]["holds"] == "yes"
    assert all(Path(figure).stat().st_size > 5_000 for figure in result.data["figures"])
