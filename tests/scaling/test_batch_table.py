"""Tables of measured batches as `plan --from`: what is read, what is refused."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from scaling_profiles import digits_profile

from quick_tiny import _quick_tiny  # noqa: F401
from thresher.cli.plan import plan as plan_command
from thresher.errors import InvalidValueError, NotFoundError, ThresherError
from thresher.scaling.batch_plan import plan_batches
from thresher.scaling.batch_table import BatchRow, read_batch_table
from thresher.scaling.plan import PlanConfig, plan

GOOD = "batch,samples\n16,1000\n64,1400\n256,3000\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_columns_without_effect_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_batch_table(write(tmp_path, "batch,samples,learning_rate\n16,1000,0.1\n64,1400,0.2\n"))
    assert "learning_rate of" in caplog.text
    assert "has no effect; columns are batch," in caplog.text


def test_counts_of_every_kind_give_samples(tmp_path: Path) -> None:
    def read(text: str, per_epoch: float | None = None) -> list[float]:
        return [row.samples for row in read_batch_table(write(tmp_path, text), per_epoch)]

    assert read("batch,samples\n8,100\n16,200\n") == [100, 200]
    assert read("Batch_Size, steps\n8,100\n16,200\n") == [800, 3200]
    assert read("batch,epochs\n8,1.5\n16,2\n", 1000) == [1500, 2000]
    assert read("batch,epochs,samples_per_epoch\n8,1.5,10\n16,2,10\n", 1000) == [15, 20]
    # Samples are the most exact.
    assert read("epochs,steps,samples,batch\n1,2,3,8\n1,2,4,16\n") == [3, 4]


def test_optional_columns_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    text = "batch,samples,target,runs,lr,seed\n8,100,0.750,3,0.1,a\n16,200,.75,,,b\n"
    path.write_text(text, encoding="utf-8-sig")
    assert read_batch_table(path) == [
        BatchRow(8, 100, "0.75", 3, 0.1),
        BatchRow(16, 200, "0.75", 1, None),
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_of_spreadsheets_are_read(tmp_path: Path, separator: str) -> None:
    text = ",batch,samples,lr\n0,8,100,0.1\n\n1,16,200\n,,,\n,,,,\n"
    path = write(tmp_path, text.replace(",", separator))
    assert read_batch_table(path) == [BatchRow(8, 100, lr=0.1), BatchRow(16, 200)]


BAD = {
    "batch,samples\n": "has 0 rows; the fit needs two batch sizes or more",
    "": "is not a CSV file: it has no header",
    "batch,epochs,lr\n32,9,1,0,02\n": "line 2 of .* has 5 values, but the header has 3; write dec",
    "batch,samples,batch\n32,9,1\n": 'has two columns "batch"',
    "batch,samples\n16,1000\n": "has 1 row; the fit needs two batch sizes or more",
    "batch,samples\n16,1000\n16,1100\n": "has rows of one batch size only",
    "batch,samples\n16,-5\n64,10\n": r"line 2: samples must be in \[1e-06, 1e\+18\], got -5",
    "batch,samples\n-16,5\n64,10\n": r"line 2: batch must be in \[1, 1e\+09\], got -16",
    "batch,samples\n16,5\n64,many\n": 'line 3: samples must be a number, got "many"',
    "batch,samples\n16,5\n64,\n": "line 3: samples must be a number, it is empty",
    "batch,samples\n16,5\n64\n": "line 3: samples must be a number, it is empty",
    "batch,samples\n16,5\n64,nan\n": "line 3: samples must be in .*, got nan",
    "batch,samples\n16,5\n64,inf\n": "line 3: samples must be in .*, got inf",
    "batch,samples\n16,5\n64,1e300\n": "line 3: samples must be in .*, got 1e300",
    "batch,samples\n16.5,5\n64,9\n": "line 2: batch must be an integer, got 16.5",
    "batch,samples,lr\n16,5,x\n64,9,1\n": 'line 2: lr must be a number, got "x"',
    "size,samples\n16,5\n64,9\n": "has no column batch; its columns are size, samples",
    "batch,loss\n16,5\n64,9\n": "has no column samples, steps or epochs; add one of them",
    "batch,epochs\n16,5\n64,9\n": "line 2: the samples of an epoch are not known",
    "batch,samples,target\n16,5,0.8\n64,9,\n": "has a target in 1 of its 2 rows",
    "batch,samples,target\n16,5,0.8\n64,9,0.9\n": "no target in .* has rows of two batch sizes",
    "batch,samples\n16,1000\n16,9000\n64,2000\n64,12000\n": "lines 2 and 3: batch 16 needs 1,000 "
    "and 9,000 samples, which cannot be one target; add a column",
    "batch,samples,target\n16,99999,.5\n64,2000,.5\n16,1000,.5\n": "lines 2 and 4: batch 16 needs "
    "99,999 and 1,000 samples, which cannot be repeats of the target 0.5; remove the wrong row",
    "batch,samples\n0,1000\n64,2000\n": r"line 2: batch must be in \[1, 1e\+09\], got 0",
    "batch,samples\n16,1000\n1e12,2000\n": "line 3: batch must be in .*, got 1e12",
    "batch,samples\n16,1000\n64,1e-17\n": "line 3: samples must be in .*, got 1e-17",
    "batch,samples,runs\n16,1000,3\n64,2000,1e-9\n": "line 3: runs must be in .*, got 1e-9",
    "batch,samples,lr\n16,1000,1e12\n64,2000,1\n": "line 2: lr must be in .*, got 1e12",
    "batch,epochs\n16,0\n64,2\n": "line 2: epochs must be in .*, got 0",
    "batch,batch_size,samples\n16,16,9\n64,32,9\n": "line 3: batch is 64, but batch_size 32",
    'batch,samples\n16,"5\n64,9\n': "is not a CSV file",
}


@pytest.mark.parametrize("text", BAD, ids=[message[:40] for message in BAD.values()])
def test_bad_tables_are_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidValueError, match=BAD[text]):
        plan_command(PlanConfig(from_=write(tmp_path, text)))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"nothing\.csv not found"):
        read_batch_table(tmp_path / "nothing.csv")
    with pytest.raises(NotFoundError, match="holds no run that reached a target"):
        read_batch_table(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)))
    with pytest.raises(InvalidValueError, match="is not a CSV file"):
        read_batch_table(tmp_path / "bytes.csv")


def test_the_command_prints_the_fit(tmp_path: Path) -> None:
    outcome = plan_command(PlanConfig(from_=write(tmp_path, GOOD)))
    data = json.loads(json.dumps(outcome.data))
    keys = {"e_min", "s_min", "b_crit", "b_crit_low", "b_crit_high", "residuals"}
    assert keys <= set(data["fit"])
    assert len(data["fit"]["residuals"]) == 3
    assert data["recommended"]["batch_size"] in {row["batch_size"] for row in data["rows"]}
    assert "critical batch" in data["recommended"]["reason"]
    assert "Recommended: batch" in outcome.text


@pytest.mark.parametrize(
    ("growth", "reason", "fit"),
    [
        (0, "the critical batch is above 256; larger batches .* no more samples", "samples at"),
        (1, "the critical batch is below 32; larger batches .* no fewer steps", "steps at"),
    ],
)
@pytest.mark.parametrize("batches", [(32, 256), (32, 64, 128, 256)])
def test_a_table_without_a_bend_has_no_critical_batch(
    tmp_path: Path, batches: tuple[int, ...], growth: int, reason: str, fit: str
) -> None:
    """The end of the search was printed as an estimate, with the effect that it would have."""
    rows = [f"{batch},{5000 * (batch // 32) ** growth}" for batch in batches]
    table = write(tmp_path, "\n".join(["batch,samples", *rows]))
    text = plan_command(PlanConfig(from_=table)).text
    assert re.search(f"Reason: {reason}", text)
    assert re.search(rf"Fit: [\d,]+ {fit} every batch size, residuals to 0\.\d %\.", text)
    for made_up in ("25,600", "0.32", "% as effective", "exactly"):
        assert made_up not in text
    assert text.count("samples do not grow") + text.count("grow in proportion") == 1


def test_a_plan_from_a_table_without_a_bend_names_no_critical_batch(
    tmp_path: Path, digits: Path
) -> None:
    table = write(tmp_path, "batch,samples\n16,20000\n64,20000\n256,20000\n")
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="tiny").save(profile)
    config = PlanConfig(
        from_=table, data=str(digits), cluster="summit", profile=profile, max_workers=1
    )
    reason = plan(config).reason
    assert reason.startswith(
        "samples do not grow from batch 16 to 256: the critical batch is above"
    )
    assert "as effective" not in reason


def test_rows_of_a_target_with_one_batch_size_are_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = write(tmp_path, "batch,samples,target\n32,1000,0.75\n64,1200,.75\n128,1500,75%\n")
    assert [point.batch for point in plan_batches(table).fit.points] == [32, 64]
    assert f"target 75% of {table} has only batch 128 and is left out" in caplog.text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("figure", Path("f.png")),
        ("budget", "3h"),
        ("profile", Path("p.json")),
        ("cluster", "summit"),
    ],
)
def test_options_on_times_need_data_and_a_plan_needs_either(
    tmp_path: Path, option: str, value: Any
) -> None:
    config = PlanConfig(**{option: value})
    with pytest.raises(ThresherError, match=f"`{option}` needs times"):
        plan_command(dataclasses.replace(config, from_=write(tmp_path, GOOD)))
    with pytest.raises(ThresherError, match="data is required"):
        plan_command(config)


def test_a_network_with_settings_of_its_own_is_planned_from_a_table_only(
    digits: Path, tmp_path: Path
) -> None:
    """Pilots train with SGD, and `thresher train` trains fast-cifar with Muon and rates for it."""
    profile = tmp_path / "profile.json"
    dataclasses.replace(digits_profile(), model="fast-cifar").save(profile)
    config = PlanConfig(
        data=str(digits),
        model="fast-cifar",
        cluster="summit",
        profile=profile,
        max_workers=1,
        target_accuracy=0.9,
    )
    with pytest.raises(InvalidValueError, match="pilots do not train fast-cifar with the settings"):
        plan(config)
    rows = GOOD.replace("\n", ",0.9\n").replace("samples,0.9", "samples,target")
    made = plan(dataclasses.replace(config, from_=write(tmp_path, rows)))
    assert made.command.endswith("--target-accuracy 0.9 --evaluate-every 1 --out RUN")
