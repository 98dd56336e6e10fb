"""A cluster as a file: devices, links, file system and price, and nothing that is not checked.

Figures are rates that a program can have: giga-bytes per second in one direction (`*_gbs`),
microseconds (`latency_us`), 10¹² operations per second (`peak_tflops`). `node` says what joins the
devices of one node, `network` what leaves a node (all its ports together).
"""

import math
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError, nearest

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
UNLIMITED = 10**6


@dataclass(frozen=True)
class Device:
    """One accelerator, or one processor core of a machine without."""

    name: str
    memory_gb: float
    memory_gbs: float
    peak_tflops: dict[str, float]
    efficiency: tuple[float, float, float] | None = None
    """Low, likely and high share of the peak that convolutions reach; None: the table's."""


@dataclass(frozen=True)
class Cluster:
    """A validated cluster; times in seconds and rates in bytes per second."""

    name: str
    title: str
    device: Device
    devices_per_node: int
    nodes: int
    inner_latency_s: float
    inner_bytes_s: float
    outer_latency_s: float
    outer_bytes_s: float
    storage_bytes_s: float
    storage_node_bytes_s: float
    device_hour: float | None = None
    shared_cores: int = 0
    """Where the workers of a node share its processor: how many cores it has; else 0."""
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        return self.devices_per_node * self.nodes

    def peak_flops(self, precision: str) -> float:
        """Operations per second at a precision; refused by name where the device has none."""
        rates = self.device.peak_tflops
        if precision not in rates:
            raise ThresherError(
                f"{self.device.name} of the cluster {self.name} has no peak rate for {precision}",
                f"use {' or '.join(rates)}, or add device.peak_tflops.{precision} to its file",
            )
        return rates[precision] * 1e12


# (key, kind, required, low, high): what is possible. The bounds are wide on purpose: they are
# there to catch bits for bytes, milliseconds for microseconds and a lost exponent, not taste.
_FIELDS: dict[str, dict[str, tuple[str, bool, float, float]]] = {
    "": {"title": ("text", False, 0, 0), "name": ("text", False, 0, 0)},
    "device": {
        "name": ("text", True, 0, 0),
        "memory_gb": ("number", True, 0.1, 10_000),
        "memory_gbs": ("number", True, 0.5, 100_000),
        "peak_tflops": ("rates", True, 1e-5, 1e5),
        "efficiency": ("range", False, 0.001, 1.0),
    },
    "node": {
        "devices": ("whole", True, 1, 10_000),
        "link_gbs": ("number", True, 1e-3, 10_000),
        "latency_us": ("number", True, 0.01, 1e6),
        "shared_cores": ("whole", False, 1, 10_000),
    },
    "network": {
        "link_gbs": ("number", True, 1e-4, 10_000),
        "latency_us": ("number", True, 0.01, 1e6),
        "nodes": ("whole", False, 1, UNLIMITED),
    },
    "storage": {
        "total_gbs": ("number", True, 1e-4, 1e6),
        "node_gbs": ("number", True, 1e-4, 1e4),
    },
    "price": {"device_hour": ("number", True, 0, 1e5)},
    "measured": {},
}
_OPTIONAL_TABLES = ("price", "measured")


def names() -> list[str]:
    """The clusters that ship with Thresher, and `local`."""
    files = resources.files("thresher.scaling").joinpath("clusters").iterdir()
    return sorted({f.name[:-5] for f in files if f.name.endswith(".toml")} | {"local"})


def load(where: str | Path) -> Cluster:
    """A cluster by name (`summit`), by file (`mine.toml`), or `local`: this machine, measured."""
    text = str(where)
    if text == "local":
        from thresher.scaling.local import local_cluster

        return local_cluster()
    if text.endswith(".toml") or "/" in text:
        path = Path(text)
        try:
            return parse(path.read_text(encoding="utf-8"), path.stem, str(path))
        except FileNotFoundError:
            raise ThresherError(f"there is no cluster file {path}", "check the path") from None
        except (UnicodeDecodeError, IsADirectoryError):
            raise ThresherError(f"{path} is not a cluster file: it is no text") from None
    if text not in names():
        raise ThresherError(
            f'there is no cluster "{text}"', f"{nearest(text, names())}, or give a FILE.toml"
        )
    source = resources.files("thresher.scaling").joinpath("clusters", f"{text}.toml")
    return parse(source.read_text(encoding="utf-8"), text, text)


def parse(text: str, name: str, where: str) -> Cluster:
    """Check every figure of a cluster's TOML and turn it into seconds and bytes."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ThresherError(f"the cluster file {where} is not TOML: {error}") from None
    tables = {key: value for key, value in raw.items() if isinstance(value, dict)}
    top = {key: value for key, value in raw.items() if not isinstance(value, dict)}
    for key in tables:
        if key not in _FIELDS:
            raise ThresherError(
                f"the cluster file {where} has a table [{key}] that means nothing",
                nearest(key, [k for k in _FIELDS if k]),
            )
    checked = {"": _table("", top, where)}
    for key in _FIELDS:
        if key == "measured":
            checked[key] = tables.get(key, {})
        elif key and (key in tables or key not in _OPTIONAL_TABLES):
            checked[key] = _table(key, tables.get(key, {}), where)
    device, node, network = checked["device"], checked["node"], checked["network"]
    storage = checked["storage"]
    return Cluster(
        name=checked[""].get("name", name),
        title=checked[""].get("title", name),
        device=Device(
            device["name"],
            device["memory_gb"],
            device["memory_gbs"],
            device["peak_tflops"],
            device.get("efficiency"),
        ),
        devices_per_node=node["devices"],
        nodes=network.get("nodes", UNLIMITED),
        inner_latency_s=node["latency_us"] * 1e-6,
        inner_bytes_s=node["link_gbs"] * 1e9,
        outer_latency_s=network["latency_us"] * 1e-6,
        outer_bytes_s=network["link_gbs"] * 1e9,
        storage_bytes_s=storage["total_gbs"] * 1e9,
        storage_node_bytes_s=storage["node_gbs"] * 1e9,
        device_hour=checked.get("price", {}).get("device_hour"),
        shared_cores=node.get("shared_cores", 0),
        measured=checked["measured"],
    )


def _table(table: str, values: dict[str, Any], where: str) -> dict[str, Any]:
    fields = _FIELDS[table]
    for key in values:
        if key not in fields:
            raise ThresherError(
                f"the cluster file {where} has {_dotted(table, key)}, which means nothing",
                nearest(key, fields),
            )
    checked: dict[str, Any] = {}
    for key, (kind, required, low, high) in fields.items():
        name = _dotted(table, key)
        if key not in values:
            if required:
                raise ThresherError(f"the cluster file {where} lacks {name}", f"add {name} = …")
            continue
        checked[key] = _value(values[key], kind, low, high, name, where)
    return checked


def _dotted(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def _value(value: Any, kind: str, low: float, high: float, name: str, where: str) -> Any:
    if kind == "text":
        if not isinstance(value, str) or not value.strip():
            raise ThresherError(f"{name} of the cluster file {where} must be a word")
        return value
    if kind == "rates":
        if not isinstance(value, dict) or not value:
            raise ThresherError(
                f"{name} of the cluster file {where} must give a rate by precision",
                f"{name} = {{ fp32 = 15.7, fp16 = 125 }}",
            )
        for precision in value:
            if precision not in PRECISIONS:
                raise ThresherError(
                    f"{name}.{precision} of the cluster file {where} is no precision",
                    nearest(precision, PRECISIONS),
                )
        return {p: _number(v, low, high, f"{name}.{p}", where) for p, v in value.items()}
    if kind == "range":
        if not isinstance(value, list) or len(value) != 3 or sorted(value) != value:
            raise ThresherError(
                f"{name} of the cluster file {where} must be [low, likely, high], ascending"
            )
        return tuple(_number(v, low, high, name, where) for v in value)
    if kind == "whole" and (isinstance(value, bool) or not isinstance(value, int)):
        raise ThresherError(f"{name} of the cluster file {where} must be a whole number")
    number = _number(value, low, high, name, where)
    return int(number) if kind == "whole" else number


def _number(value: Any, low: float, high: float, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ThresherError(f"{name} of the cluster file {where} must be a number, not {value!r}")
    if not low <= value <= high:
        raise ThresherError(
            f"{name} = {value:g} of the cluster file {where} is impossible",
            f"it lies between {low:g} and {high:g}",
        )
    return float(value)
