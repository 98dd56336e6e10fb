"""The study of a hundred seeds, and the reading of what is timed beside it."""

from pathlib import Path

import pytest
from benchmarks.fast_cifar import Workload, read_airbench

from thresher.study.reading import load

ROOT = Path(__file__).parent.parent.parent
PRINTED = """\
---------------------------------------------------------------------
|  run   |  epoch  |  train_acc  |  val_acc  |  tta_val_acc  |  time_seconds  |
---------------------------------------------------------------------
|  warmup  |  eval  |      0.9500 |    0.9300 |        0.9400 |         9.0000 |
|       0  |  eval  |      0.9510 |    0.9310 |        0.9420 |         2.0000 |
|       1  |  eval  |      0.9520 |    0.9320 |        0.9440 |         3.0000 |
Mean: 0.9430    Std: 0.0014
"""


def test_the_example_trains_a_hundred_seeds() -> None:
    study = load(ROOT / "examples" / "hundred-seeds.toml")
    assert study.seeds == tuple(range(100))
    assert study.base == Workload("cifar10", 100, 0.0, {}).base()


def test_what_airbench_prints_is_read_without_its_warm_up() -> None:
    read = read_airbench(PRINTED, 2, 20.0)
    assert read == {"runs": 2, "accuracy": pytest.approx(94.3), "seconds": 2.5}


def test_without_times_the_wall_time_is_divided() -> None:
    assert read_airbench("done\n", 4, 20.0) == {"runs": 4, "accuracy": None, "seconds": 5.0}
