"""A cluster: its devices, links, file system and price, read from a TOML file and validated.

Rates in the file are what a program can reach: 10⁹ bytes per second in one direction (`*_gbs`),
microseconds (`latency_us`), 10¹² operations per second (`peak_tflops`). `[node]` describes the
links between the devices of one node, `[network]` all ports that leave a node together.
"""

import math
import tomllib
from dataclasses import dataclass
from typing import Any, Literal

from thresher.errors import InvalidValueError
from thresher.options import from_mapping, option

UNLIMITED = 10**6
"""Nodes of a cluster whose file gives no number."""
DevicePrecision = Literal["fp32", "tf32", "bf16", "fp16"]

# The bounds of the file's tables are wide: they catch bits given as bytes, milliseconds given as
# microseconds and a lost exponent.


@dataclass(frozen=True)
class Device:
    """One accelerator, or the processor of a machine without accelerators: table `[device]`."""

    name: str
    memory_gb: float = option(ge=0.1, le=10_000)
    memory_gbs: float = option(ge=0.5, le=100_000)
    peak_tflops: dict[DevicePrecision, float] = option(ge=1e-5, le=1e5)
    """10¹² operations per second by precision."""
    efficiency: tuple[float, float, float] | None = option(None, ge=0.001, le=1)
    """Low, likely and high share of the peak that convolutions reach; None: see `compute`."""


@dataclass(frozen=True)
class Cluster:
    """A validated cluster. Times are in seconds and rates in bytes per second."""

    name: str
    title: str
    device: Device
    devices_per_node: int
    nodes: int
    inner_latency_s: float
    inner_bytes_s: float
    outer_latency_s: float
    outer_bytes_s: float
    storage_bytes_s: float = math.inf
    storage_node_bytes_s: float = math.inf
    device_hour: float | None = None
    """Price of one device for one hour; None if the file gives none."""
    shared_cores: int | None = None
    """Cores of a node whose workers share its processor; None if each has its own device."""

    @property
    def capacity(self) -> int:
        """Number of devices."""
        return self.devices_per_node * self.nodes

    def peak_flops(self, precision: DevicePrecision) -> float:
        """Return the operations per second of a device; the cluster's file must give them."""
        rates = self.device.peak_tflops
        if precision not in rates:
            raise InvalidValueError(
                f"{self.device.name} of cluster {self.name} has no peak rate for {precision}",
                f"use {' or '.join(rates)}, or add device.peak_tflops.{precision} to its file",
            )
        return rates[precision] * 1e12


@dataclass(frozen=True, kw_only=True)
class _Node:
    devices: int = option(ge=1, le=10_000)
    link_gbs: float = option(ge=1e-3, le=10_000)
    latency_us: float = option(ge=0.01, le=1e6)
    shared_cores: int | None = option(None, ge=1, le=10_000)


@dataclass(frozen=True, kw_only=True)
class _Network:
    link_gbs: float = option(ge=1e-4, le=10_000)
    latency_us: float = option(ge=0.01, le=1e6)
    nodes: int = option(UNLIMITED, ge=1, le=UNLIMITED)


@dataclass(frozen=True, kw_only=True)
class _Storage:
    total_gbs: float = option(ge=1e-4, le=1e6)
    node_gbs: float = option(ge=1e-4, le=1e4)


@dataclass(frozen=True, kw_only=True)
class _Price:
    device_hour: float = option(ge=0, le=1e5)


@dataclass(frozen=True, kw_only=True)
class _File:
    title: str | None = None
    name: str | None = None
    device: Device
    node: _Node
    network: _Network
    storage: _Storage
    price: _Price | None = None
    measured: Any = None
    """Remarks on how the figures were measured; not read."""


def parse_cluster(text: str, name: str, source: str) -> Cluster:
    """Build a cluster from the text of a TOML file, and check every table and key.

    `name` is that of the cluster where the file gives none; `source`, the file, is for messages.
    """
    where = f"cluster file {source}"
    try:
        file = from_mapping(_File, tomllib.loads(text), where)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValueError(f"{where} is not TOML: {error}") from None
    share = file.device.efficiency
    if share is not None and sorted(share) != list(share):
        what = f"device.efficiency must be [low, likely, high], ascending, got {list(share)}"
        raise InvalidValueError(f"{what} (in {where})")
    if not file.device.peak_tflops:
        fix = "write peak_tflops = { fp32 = 15.7, fp16 = 125 }"
        raise InvalidValueError(f"device.peak_tflops must not be empty (in {where})", fix)
    return Cluster(
        name=file.name or name,
        title=file.title or name,
        device=file.device,
        devices_per_node=file.node.devices,
        nodes=file.network.nodes,
        inner_latency_s=file.node.latency_us * 1e-6,
        inner_bytes_s=file.node.link_gbs * 1e9,
        outer_latency_s=file.network.latency_us * 1e-6,
        outer_bytes_s=file.network.link_gbs * 1e9,
        storage_bytes_s=file.storage.total_gbs * 1e9,
        storage_node_bytes_s=file.storage.node_gbs * 1e9,
        device_hour=None if file.price is None else file.price.device_hour,
        shared_cores=file.node.shared_cores,
    )
