"""Seconds of computation at any batch: as measured, or estimated for another device (roofline).

A profile taken on the cluster's own kind of device is used as it is. On another device a layer
takes the longer of its operations at a share of the device's peak and its bytes at the memory's
speed, plus a fixed time to start a kernel; the share is a range, and so is the estimate.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from thresher.scaling.cluster import Cluster, DevicePrecision
from thresher.scaling.pipeline import Gradient
from thresher.scaling.profile import Profile, at_batch

# Low, likely and high share of the peak that convolutions reach. ResNet-50 in public runs: about
# 0.6 of the V100's float32 peak; 0.2 to 0.35 of a matrix unit's, limited by memory bandwidth. Two
# networks timed on an H200 in float32 are at both ends of that row.
SHARE_OF_PEAK = {
    "fp32": (0.33, 0.55, 0.75),
    "tf32": (0.20, 0.35, 0.50),
    "bf16": (0.20, 0.35, 0.50),
    "fp16": (0.20, 0.35, 0.50),
}
KERNEL_S = (20e-6, 10e-6, 5e-6)
"""Seconds to start the kernel of one layer, for the low, likely and high estimate of speed."""
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class ComputeTimes:
    """One worker's step without communication."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: list[Gradient]
    """In the order in which they become ready; times from the beginning of the backward pass."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.forward_s + self.backward_s + self.optimizer_s

    def slower(self, factor: float) -> "ComputeTimes":
        """Return these times multiplied by `factor`."""
        return ComputeTimes(
            self.forward_s * factor,
            self.backward_s * factor,
            self.optimizer_s * factor,
            [Gradient(g.bytes, g.ready_s * factor) for g in self.gradients],
        )


def measured_here(profile: Profile, cluster: Cluster, precision: str) -> bool:
    """Return whether the profile was measured on the cluster's device at `precision`."""
    return profile.precision == precision and _plain(profile.device.name) == _plain(
        cluster.device.name
    )


def _plain(name: str) -> str:
    """Normalise a device name: punctuation and maker differ (`NVIDIA A100-SXM4-80GB`)."""
    letters = "".join(c for c in name.lower() if c.isalnum())
    return letters.removeprefix("nvidia").removeprefix("tesla")


def from_profile(profile: Profile, batch: float) -> ComputeTimes:
    """Return the measured times, interpolated between the measured batches."""
    forward = at_batch({b.batch: b.forward_s for b in profile.batches}, batch)
    backward = at_batch({b.batch: b.backward_s for b in profile.batches}, batch)
    optimizer = min(b.optimizer_s for b in profile.batches)
    parts = [at_batch(layer.backward_s, batch) for layer in reversed(profile.layers)]
    # The layers' times add up to the backward pass except for the loss; scale them to all of it.
    scale = backward / sum(parts) if sum(parts) > 0 else 0.0
    gradients = gradients_ready(profile, [part * scale for part in parts])
    return ComputeTimes(forward, sum(parts) * scale, optimizer, gradients)


def from_roofline(
    profile: Profile, cluster: Cluster, batch: float, precision: DevicePrecision, level: int
) -> ComputeTimes:
    """Estimate the times on the cluster's device; `level` is as in `predict_step`."""
    share = (cluster.device.efficiency or SHARE_OF_PEAK[precision])[level]
    flops_s = cluster.peak_flops(precision) * share
    bytes_s = cluster.device.memory_gbs * 1e9 * 0.8
    width = BYTES[precision] / 4
    start = KERNEL_S[level]
    forward, backward = 0.0, []
    for layer in profile.layers:
        # Forward reads and writes an activation; backward reads two and writes one.
        moved = layer.activation_bytes * width * batch
        weights = layer.gradient_bytes * width
        forward += start + max(layer.flops * batch / flops_s, (2 * moved + weights) / bytes_s)
        backward.append(
            2 * start + max(2 * layer.flops * batch / flops_s, (3 * moved + 2 * weights) / bytes_s)
        )
    # Momentum SGD reads weight, gradient and momentum and writes two of them, in float32.
    optimizer = 5 * profile.gradient_bytes / bytes_s + start
    backward.reverse()
    return ComputeTimes(forward, sum(backward), optimizer, gradients_ready(profile, backward))


def gradients_ready(profile: Profile, backward: Sequence[float]) -> list[Gradient]:
    """Return the gradients, given the seconds of each layer from the last to the first."""
    layers = zip(reversed(profile.layers), itertools.accumulate(backward), strict=True)
    return [Gradient(x.gradient_bytes, ready) for x, ready in layers if x.parameters]


@dataclass(frozen=True)
class AmdahlBound:
    """How far splitting a batch B can speed up a step if communication were free."""

    serial: float
    """Share of the step at B that remains at batch 1."""
    bound: float
    """Amdahl's limit for any number of workers, 1/serial."""
    hard: float
    """B: each worker needs a sample."""
    measured: float
    """Speed-up of the step from batch B to the smallest batch measured."""


def amdahl(profile: Profile) -> AmdahlBound:
    """Return the speed-up limits of splitting the profile's largest batch."""
    largest = max(profile.batches, key=lambda b: b.batch)
    smallest = min(profile.batches, key=lambda b: b.batch)
    # The part of each layer that does not scale: what a straight line through its times at the
    # largest and smallest batch gives at batch 0.
    fixed = min(b.optimizer_s for b in profile.batches)
    for times in (table for x in profile.layers for table in (x.forward_s, x.backward_s)):
        top, low = times[largest.batch], times[smallest.batch]
        slope = max(0.0, (top - low) / max(1, largest.batch - smallest.batch))
        fixed += max(0.0, min(low, top) - slope * smallest.batch)
    serial = min(1.0, fixed / largest.step_s)
    return AmdahlBound(
        serial=serial,
        bound=1 / serial if serial > 0 else float(largest.batch),
        hard=float(largest.batch),
        measured=largest.step_s / smallest.step_s,
    )
