"""Where a process stands is read from torchrun's environment, or from SLURM's."""

import sys
from pathlib import Path

import pytest

from gloo_ranks import run_ranks
from thresher.distributed.group import Placement, first_host, gpu_number, placement

sys.path.append(str(Path(__file__).parent.parent / "training"))
pytest_plugins = ["train_data"]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")


def _set(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name in (*NAMES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_place_of_one_of_torchrun_and_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch)
    assert placement() == Placement(0, 1, 0, 1)
    _set(monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4")
    assert placement() == Placement(5, 8, 1, 4)
    _set(
        monkeypatch,
        SLURM_STEP_NUM_TASKS="6",
        SLURM_PROCID="4",
        SLURM_LOCALID="1",
        SLURM_STEP_TASKS_PER_NODE="3(x2)",
    )
    assert placement() == Placement(4, 6, 1, 3)
    # One task of a step is no group, whatever the job asked for.
    _set(monkeypatch, SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0")
    assert placement() == Placement(0, 1, 0, 1)


def test_workers_without_a_local_rank_have_gpus_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them computed on the first one."""
    _set(monkeypatch, RANK="5", WORLD_SIZE="8")
    assert placement() == Placement(5, 8, None, 8)
    assert [gpu_number(Placement(rank, 8, None), 4) for rank in range(8)] == [0, 1, 2, 3] * 2
    assert gpu_number(Placement(1, 2, None), 1) == 0  # on two machines
    assert gpu_number(Placement(5, 8, 1, 4), 8) == 1  # what a launcher says counts


def _places(rank: int, world: int) -> list[Placement]:
    import os

    from thresher.distributed.group import placement

    own = placement()
    # Each of two tasks of srun starts workers: they are not the tasks.
    os.environ.update(SLURM_STEP_NUM_TASKS="3", SLURM_PROCID="0", SLURM_LOCALID="0")
    return [own, placement()]


@pytest.mark.xdist_group("ranks")
def test_a_group_that_the_program_made_has_no_local_ranks() -> None:
    for rank, places in enumerate(run_ranks(2, _places)):
        assert [(p.rank, p.world, p.local_rank) for p in places] == [(rank, 2, None)] * 2


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n[3-5,9],m1", "n3"), ("n07", "n07"), ("a,b", "a"), ("gpu-[001-4]", "gpu-001")],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def _weak(rank: int, world: int, data: str, out: str) -> tuple[int, int, int]:
    from thresher import TrainConfig, train

    config = TrainConfig(data=data, out=out, batch_size=8, epochs=1, scaling="weak", workers=world)
    resolved = train(config, quiet=True).resolved
    return resolved.workers, resolved.global_batch, resolved.total_steps


@pytest.mark.xdist_group("ranks")
def test_workers_of_a_group_that_the_program_made_are_counted(few: Path, tmp_path: Path) -> None:
    """No launcher has set variables; batches must be those that the workers really share."""
    found = run_ranks(2, _weak, str(few), str(tmp_path / "run"))
    assert found == [(2, 16, 18), (2, 16, 18)]
