"""Seconds of computation at any batch: as measured, or carried to another device by a roofline.

Measured where the profile was taken on the cluster's own kind of device. Elsewhere a layer takes
the longer of its operations at a share of the device's peak and its bytes at the memory's speed,
plus a fixed time to start a kernel; the share is a range, and so is the answer.
"""

from dataclasses import dataclass

from thresher.scaling.cluster import Cluster
from thresher.scaling.pipeline import Gradient
from thresher.scaling.profile import Profile, at_batch

# Low, likely and high share of the peak that convolutions reach. ResNet-50 in public runs: about
# 0.6 of the V100's float32 peak; 0.2 to 0.35 of a matrix unit's, where the memory sets the pace.
# Two networks that we timed on an H200 in float32 lie at both ends of that row.
SHARE_OF_PEAK = {
    "fp32": (0.33, 0.55, 0.75),
    "tf32": (0.20, 0.35, 0.50),
    "bf16": (0.20, 0.35, 0.50),
    "fp16": (0.20, 0.35, 0.50),
}
KERNEL_S = (20e-6, 10e-6, 5e-6)
"""Seconds to start one layer's kernel: low, likely, high estimate of speed."""
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class StepCompute:
    """One worker's step without communication, and when each gradient is ready.

    `gradients` count from the beginning of the backward pass, in the order they become ready.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    gradients: list[Gradient]

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s + self.optimizer_s

    def slower(self, factor: float) -> "StepCompute":
        return StepCompute(
            self.forward_s * factor,
            self.backward_s * factor,
            self.optimizer_s * factor,
            [Gradient(g.size, g.ready_s * factor) for g in self.gradients],
        )


def measured_here(profile: Profile, cluster: Cluster, precision: str) -> bool:
    """Whether the profile's times are those of the cluster's device, so that none is estimated."""
    return (
        profile.precision == precision
        and _plain(str(profile.device.get("name", ""))) == _plain(cluster.device.name)
        and bool(profile.batches)
    )


def _plain(name: str) -> str:
    """Device names differ in their punctuation and maker: `NVIDIA A100-SXM4-80GB`."""
    kept = "".join(c for c in name.lower() if c.isalnum())
    return kept.removeprefix("nvidia").removeprefix("tesla")


def from_profile(profile: Profile, batch: float) -> StepCompute:
    """As measured, between the measured batches where need be."""
    forward = at_batch({b.batch: b.forward_s for b in profile.batches}, batch)
    backward = at_batch({b.batch: b.backward_s for b in profile.batches}, batch)
    optimizer = min(b.optimizer_s for b in profile.batches)
    parts = [at_batch(layer.backward_s, batch) for layer in reversed(profile.layers)]
    # The marks of the layers add up to the backward pass but for the loss; stretch them to it.
    scale = backward / sum(parts) if sum(parts) > 0 else 0.0
    return _assemble(profile, forward, [part * scale for part in parts], optimizer)


def from_roofline(
    profile: Profile, cluster: Cluster, batch: float, precision: str, level: int
) -> StepCompute:
    """Estimated for the cluster's device; `level` 0, 1, 2 is the low, likely, high speed."""
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
    return _assemble(profile, forward, backward[::-1], optimizer)


def _assemble(
    profile: Profile, forward: float, backward: list[float], optimizer: float
) -> StepCompute:
    """`backward` runs from the last layer to the first, as the pass does."""
    clock, gradients = 0.0, []
    for layer, seconds in zip(reversed(profile.layers), backward, strict=True):
        clock += seconds
        if layer.parameters:
            gradients.append(Gradient(layer.gradient_bytes, clock))
    return StepCompute(forward, clock, optimizer, gradients)


def amdahl(profile: Profile) -> dict[str, float]:
    """Claim K2 and K3: speed-up of one node's step when its batch goes from B to 1, layer by layer.

    `serial` is the share of the step at B that is still there at batch 1; `bound` = 1/serial is
    Amdahl's limit for any number of workers, `hard` = B the limit of b ≥ 1, `measured` the speed-up
    that splitting B into single samples gave.
    """
    largest = max(profile.batches, key=lambda b: b.batch)
    smallest = min(profile.batches, key=lambda b: b.batch)
    # Non-scaling part of each layer: what a straight line through its two ends leaves at batch 0.
    fixed = 0.0
    for layer in profile.layers:
        for times in (layer.forward_s, layer.backward_s):
            top, low = times.get(largest.batch, 0.0), times.get(smallest.batch, 0.0)
            slope = max(0.0, (top - low) / max(1, largest.batch - smallest.batch))
            fixed += max(0.0, min(low, top) - slope * smallest.batch)
    fixed += min(b.optimizer_s for b in profile.batches)
    serial = min(1.0, fixed / largest.step_s)
    return {
        "serial": serial,
        "bound": 1 / serial if serial > 0 else float(largest.batch),
        "hard": float(largest.batch),
        "measured": largest.step_s / smallest.step_s,
    }
