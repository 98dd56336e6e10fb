from pathlib import Path

import pytest

from thresher.errors import ThresherError
from thresher.scaling import cluster

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


@pytest.mark.parametrize("name", [n for n in cluster.names() if n != "local"])
def test_every_cluster_that_ships_is_valid(name: str) -> None:
    found = cluster.load(name)
    assert found.name == name
    assert found.peak_flops("fp32") > 1e12
    assert found.outer_bytes_s <= found.inner_bytes_s


def test_the_clusters_that_were_promised_are_there() -> None:
    assert {"summit", "8xa100", "8xh100", "100gbe", "10gbe", "local"} <= set(cluster.names())


def test_a_users_own_file_is_read_in_its_units(tmp_path: Path) -> None:
    found = cluster.load(write(tmp_path, GOOD))
    assert found.name == "mine"
    assert found.devices_per_node == 4
    assert found.inner_bytes_s == 50e9
    assert found.outer_latency_s == pytest.approx(5e-6)
    assert found.device_hour is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("link_gbs = 10\n", ""), "lacks network.link_gbs"),
        (("memory_gbs = 900\n", ""), "lacks device.memory_gbs"),
        (("devices = 4", "devices = 0"), "node.devices = 0 .* is impossible"),
        (("devices = 4", "devices = 2.5"), "node.devices .* must be a whole number"),
        (("link_gbs = 50", "link_gbs = -1"), "node.link_gbs = -1 .* is impossible"),
        (("link_gbs = 50", "link_gbs = nan"), "node.link_gbs .* must be a number"),
        (("link_gbs = 50", "link_gbs = inf"), "node.link_gbs = inf .* is impossible"),
        (("link_gbs = 50", 'link_gbs = "fast"'), "node.link_gbs .* must be a number"),
        (("link_gbs = 50", "link_gbs = true"), "node.link_gbs .* must be a number"),
        (("fp32 = 10", "fp33 = 10"), "fp33 .* is no precision"),
        (("{ fp32 = 10 }", "10"), "must give a rate by precision"),
        (("fp32 = 10", "fp32 = 0"), "peak_tflops.fp32 = 0 .* is impossible"),
        (("latency_us = 5", "latency_ms = 5"), "latency_ms, which means nothing"),
        (("[storage]", "[storag]"), r"table \[storag\] that means nothing"),
        (("[device]", "[device"), "is not TOML"),
    ],
)
def test_a_bad_figure_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ThresherError, match=message):
        cluster.load(write(tmp_path, GOOD.replace(*change, 1)))


def test_a_missing_table_is_refused_by_its_first_figure(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match=r"lacks storage\.total_gbs"):
        cluster.load(write(tmp_path, GOOD.split("[storage]")[0]))


def test_unknown_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ThresherError, match='did you mean "summit"'):
        cluster.load("sumit")
    with pytest.raises(ThresherError, match="there is no cluster file"):
        cluster.load(tmp_path / "none.toml")


def test_a_precision_the_device_lacks_is_refused_by_name() -> None:
    with pytest.raises(ThresherError, match=r"V100-SXM2-16GB .* has no peak rate for bf16"):
        cluster.load("summit").peak_flops("bf16")
