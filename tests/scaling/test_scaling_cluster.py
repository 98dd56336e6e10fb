import os
from pathlib import Path
from typing import Any

import pytest
import torch

from forks import FORKS
from thresher.errors import ThresherError
from thresher.scaling.catalog import cluster_names, describe_device, load_cluster

GOOD = """
[device]
name = "X"
memory_gb = 16
memory_gbs = 900
peak_tflops = { fp32 = 10 }
[node]
devices = 4
link_gbs = 50
latency_us = 5
[network]
link_gbs = 10
latency_us = 5
[storage]
total_gbs = 10
node_gbs = 1
"""


def write(path: Path, text: str) -> str:
    file = path / "mine.toml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("name", [n for n in cluster_names() if n != "local"])
def test_every_cluster_that_ships_is_valid(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.peak_flops("fp32") > 1e12
    assert cluster.outer_bytes_s <= cluster.inner_bytes_s


def test_the_clusters_that_were_promised_are_there() -> None:
    assert {"summit", "8xa100", "8xh100", "100gbe", "10gbe", "local"} <= set(cluster_names())


def test_a_users_own_file_is_read_in_its_units(tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, GOOD))
    assert cluster.name == "mine"
    assert cluster.devices_per_node == 4
    assert cluster.inner_bytes_s == 50e9
    assert cluster.outer_latency_s == pytest.approx(5e-6)
    assert cluster.device_hour is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("link_gbs = 10\n", ""), "network.link_gbs is required"),
        (("memory_gbs = 900\n", ""), "device.memory_gbs is required"),
        (("devices = 4", "devices = 0"), r"node.devices must be in \[1, 10000\], got 0"),
        (("devices = 4", "devices = 2.5"), "node.devices must be an integer, got 2.5"),
        (("link_gbs = 50", "link_gbs = -1"), r"node.link_gbs must be in \[0.001, .*, got -1"),
        (("link_gbs = 50", "link_gbs = nan"), "node.link_gbs must be in .*, got nan"),
        (("link_gbs = 50", "link_gbs = inf"), "node.link_gbs must be in .*, got inf"),
        (("link_gbs = 50", 'link_gbs = "fast"'), "node.link_gbs must be a number, got 'fast'"),
        (("link_gbs = 50", "link_gbs = true"), "node.link_gbs must be a number, got True"),
        (("fp32 = 10", "fp33 = 10"), 'device.peak_tflops cannot be "fp33"'),
        (("{ fp32 = 10 }", "10"), "device.peak_tflops must be a table, got 10"),
        (("{ fp32 = 10 }", "{}"), "device.peak_tflops must not be empty"),
        (("fp32 = 10", "fp32 = 0"), "device.peak_tflops.fp32 must be in .*, got 0"),
        (("[node]", "efficiency = [0.5, 0.2, 0.7]\n[node]"), "ascending, got"),
        (("[node]", "efficiency = [0.5]\n[node]"), "device.efficiency must have 3 values, got 1"),
        (("latency_us = 5", "latency_ms = 5"), 'unknown option "node.latency_ms"'),
        (("[storage]", "[storag]"), 'unknown option "storag".*; did you mean "storage"'),
        (("[device]", "[device"), "is not TOML"),
    ],
)
def test_a_bad_figure_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ThresherError, match=message) as raised:
        load_cluster(write(tmp_path, GOOD.replace(*change, 1)))
    assert "mine.toml" in str(raised.value)


def test_a_missing_table_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match="storage is required"):
        load_cluster(write(tmp_path, GOOD.split("[storage]")[0]))


def test_unknown_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match='did you mean "summit"'):
        load_cluster("sumit")
    with pytest.raises(ThresherError, match="cannot read cluster file"):
        load_cluster(tmp_path / "none.toml")
    with pytest.raises(ThresherError, match="cannot read cluster file"):
        load_cluster(f"{tmp_path}/")


def test_a_precision_the_device_lacks_is_refused_by_name() -> None:
    with pytest.raises(ThresherError, match=r"V100-SXM2-16GB .* has no peak rate for bf16"):
        load_cluster("summit").peak_flops("bf16")


@pytest.mark.slow
def test_cores_of_this_machine_are_those_that_the_process_may_use() -> None:
    """Workers of a job with a share of the cores must not be predicted to have all of them."""
    cores = FORKS.Queue()
    process = FORKS.Process(target=_cores_of_one, args=(cores,))
    process.start()
    assert cores.get(timeout=60) == 1
    process.join()


def _cores_of_one(cores: Any) -> None:
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    cores.put(describe_device("cpu").cores)
