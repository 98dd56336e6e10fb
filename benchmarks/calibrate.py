"""Predict step times on a test bed of hosts from measurements on one host and on two."""

import os
from dataclasses import dataclass, replace
from typing import Any

from thresher.distributed.local_group import gloo_group
from thresher.lab.shares import PERIOD_US, enter_share
from thresher.lab.testbed import Testbed
from thresher.options import from_mapping, to_mapping
from thresher.scaling.cluster import Cluster, Device
from thresher.scaling.costs import fit_ring
from thresher.scaling.profile import BatchTimes, DeviceInfo, Layer, OverlapTimes, Profile
from thresher.scaling.step import StepConfig, predict_step
from thresher.scaling.synthetic import SyntheticBatch

SIZES = (2**10, 2**14, 2**17, 2**20, 2**22)
"""Bytes of the all-reduces that measure the links."""


@dataclass(frozen=True)
class CalibrationCase:
    """A model at a batch size for each host (weak scaling)."""

    model: str
    batch: int
    image_size: int = 32
    classes: int = 10
    seconds: float = 6.0
    """About how long to measure."""

    def synthetic(self) -> SyntheticBatch:
        """Return the batch of one host."""
        return SyntheticBatch((3, self.image_size, self.image_size), self.classes, self.batch)


def measure_profile(bed: Testbed, case: CalibrationCase, shares: list[str] | None) -> Profile:
    """Time the layers on one host; `shares` are control groups from `host_shares`."""
    times = from_mapping(_HostTimes, _call(bed, case, 1, shares, "_time_layers"))
    return host_profile(case, times.layers, times.step)


def measure_links(
    bed: Testbed, case: CalibrationCase, shares: list[str] | None
) -> list[tuple[float, float]]:
    """Time all-reduces of two hosts; return (bytes, seconds) of each message size."""
    return [(size, seconds) for size, seconds in _call(bed, case, 2, shares, "_time_links")]


def measure_step(
    bed: Testbed, case: CalibrationCase, hosts: int, shares: list[str] | None
) -> OverlapTimes:
    """Time a DDP step on the first `hosts` hosts."""
    return from_mapping(OverlapTimes, _call(bed, case, hosts, shares, "_time_step"))


@dataclass(frozen=True)
class _Order:
    """What a worker of the test bed measures."""

    case: CalibrationCase
    shares: tuple[str, ...] | None

    def prepare(self) -> None:
        """Set up torch and enter this host's share of a core; call it after slow imports."""
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
        if self.shares:
            enter_share(self.shares[int(os.environ["RANK"])])


@dataclass(frozen=True)
class _HostTimes:
    layers: tuple[Layer, ...]
    step: BatchTimes


def _call(
    bed: Testbed, case: CalibrationCase, hosts: int, shares: list[str] | None, function: str
) -> Any:
    order = _Order(case, None if shares is None else tuple(shares))
    return bed.call(f"benchmarks.calibrate:{function}", to_mapping(order), hosts)


def host_profile(case: CalibrationCase, layers: tuple[Layer, ...], times: BatchTimes) -> Profile:
    """Return the times of one host as a profile."""
    parameters = sum(layer.parameters for layer in layers)
    return Profile(
        model=case.model,
        classes=case.classes,
        channels=3,
        image_size=case.image_size,
        batch_size=case.batch,
        precision="fp32",
        device=DeviceInfo("cpu", "host"),
        parameters=parameters,
        gradient_bytes=4 * parameters,
        sample_bytes=3 * case.image_size**2,
        layers=layers,
        batches=(times,),
    )


def bed_cluster(points: list[tuple[float, float]]) -> Cluster:
    """Return hosts of one device each, with the links that two of them measured."""
    link, _ = fit_ring(points, 2)
    return Cluster(
        name="test bed",
        title="hosts in network namespaces",
        device=Device("host", 4, 5, {"fp32": 0.01}),
        devices_per_node=1,
        nodes=8,
        inner_latency_s=link.latency_s,
        inner_bytes_s=1 / link.seconds_per_byte,
        outer_latency_s=link.latency_s,
        outer_bytes_s=1 / link.seconds_per_byte,
    )


@dataclass(frozen=True)
class StepPredictor:
    """Predicts steps on a test bed; calibrated on one host (layers) and two (links, one step)."""

    profile: Profile
    cluster: Cluster
    stall_s: float
    """Extra seconds of each step of the ring: a message needs both ends, and either may be paused
    for a period of its control group."""
    drag_s: float
    """Extra seconds of two hosts in proportion to the bytes."""

    def seconds(self, hosts: int, bucket_mb: float = 25.0) -> float:
        """Return the predicted seconds of a step on `hosts` hosts.

        A ring takes 2(p−1) steps and moves 2(p−1)/p of the gradient's bytes.
        """
        config = StepConfig(allreduce="ring", bucket_mb=bucket_mb)
        bare = predict_step(self.profile, self.cluster, hosts, config).step_s
        return bare + 2 * (hosts - 1) * self.stall_s + 2 * (hosts - 1) / hosts * self.drag_s


def calibrate(
    profile: Profile, points: list[tuple[float, float]], two_s: float, limited: bool = True
) -> StepPredictor:
    """Calibrate a predictor with the layers of one host, and all-reduces and a step of two.

    `limited` says whether the hosts are limited to a share of a core, so that they can stall.
    """
    plain = StepPredictor(profile, bed_cluster(points), 0.0, 0.0)
    surplus = two_s - plain.seconds(2)
    # A negative surplus is measurement noise, which must not be multiplied by the steps.
    stall = min(max(0.0, surplus / 2), 2 * PERIOD_US * 1e-6) if limited else 0.0
    return replace(plain, stall_s=stall, drag_s=surplus - 2 * stall)


def _time_layers(values: Any) -> Any:
    import torch

    from thresher.models.registry import build
    from thresher.scaling.layers import time_layers

    order = from_mapping(_Order, values)
    case = order.case
    model = build(case.model, case.classes, 3)
    order.prepare()
    device, sizes = torch.device("cpu"), [case.batch]
    layers, (step,) = time_layers(
        model, case.synthetic(), device, seconds_per_batch=case.seconds, batches=sizes
    )
    return to_mapping(_HostTimes(layers, step))


def _time_links(values: Any) -> list[tuple[float, float]]:
    from thresher.scaling.links import time_allreduce

    order = from_mapping(_Order, values)
    order.prepare()
    with gloo_group():
        return time_allreduce(SIZES, seconds=order.case.seconds / 4)


def _time_step(values: Any) -> Any:
    from thresher.models.registry import build
    from thresher.scaling.links import time_step

    order = from_mapping(_Order, values)
    case = order.case
    model = build(case.model, case.classes, 3)
    order.prepare()
    with gloo_group():
        return to_mapping(time_step(model, case.synthetic(), seconds=3 * case.seconds))
