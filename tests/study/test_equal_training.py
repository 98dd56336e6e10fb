"""Arms that take equally many steps on different numbers of samples are noted."""

from pathlib import Path
from typing import Any

import pytest

from thresher import Study, analyse
from thresher.paths import RunPaths, write_json
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial


def _trials(**samples: int) -> list[Trial]:
    """Return two seeds of each arm, 400 steps each on that many samples, at two batch sizes."""
    return [
        Trial(
            cell={"batch_size": batch, "arm": arm.rstrip("_")},
            seed=seed,
            value=80.0 + seed + len(arm) / 10,
            status="finished",
            steps=350 if arm.endswith("_") else 400,
            samples=count if batch == 6272 else 2_000_000,
        )
        for arm, count in samples.items()
        for batch in (1024, 6272)
        for seed in range(2)
    ]


def _notes(trials: list[Trial], **config: Any) -> list[str]:
    notes = analyse(trials, ComparisonConfig(compare="arm", **config)).notes
    return [note for note in notes if "equally many steps" in note]


def test_arms_with_unequal_samples_are_named() -> None:
    (note,) = _notes(_trials(full=2_000_000, network=2_200_000), pairs=(("network", "full"),))
    assert "network trained on up to 10.0 % more samples than full" in note
    assert "drop_last" in note


def test_arms_that_chose_different_rates_are_compared(digits: Path, tmp_path: Path) -> None:
    grid = {"flip": [False, True], "lr": [0.1, 0.2]}
    base = {"data": "digits", "validation": 0.1}
    content = {"seeds": 2, "base": base, "grid": grid, "tune": ["lr"]}
    study = Study.from_dict(content, tmp_path)
    for trial in study.plan().trials.values():
        assert trial.cell is not None
        flip, lr = trial.cell["flip"], trial.cell["lr"]
        result = {"status": "finished", "accuracy": 0.9, "seconds": 1.0, "steps": 400}
        result |= {"samples": 2_200_000 if flip else 2_000_000}
        # With mirrored images the higher rate is chosen, without the lower one.
        result["validation_accuracy"] = lr if flip else 1 - lr
        write_json(RunPaths(trial.out).result, result)
    analysis = analyse(study)
    assert [cell.chosen for cell in analysis.cells] == [{"lr": 0.1}, {"lr": 0.2}]
    (note,) = [note for note in analysis.notes if "equally many steps" in note]
    assert "True trained on up to 10.0 % more samples than False" in note


@pytest.mark.parametrize(
    "samples",
    [
        {"full": 2_000_000, "network": 2_010_000},  # half a percent
        {"full": 2_000_000, "network_": 2_200_000},  # other steps: a budget of epochs
    ],
)
def test_nothing_is_said_of_other_arms(samples: dict[str, int]) -> None:
    assert not _notes(_trials(**samples), pairs=(("network", "full"),))
