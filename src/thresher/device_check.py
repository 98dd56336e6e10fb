"""Devices that Thresher's own tests do not cover, such as Apple's GPU ("mps").

Only networks and optimizers run there. Images are prepared, and sums in float64 are taken, on the
CPU, since such a device may lack float64 or exact 64-bit integers. Before results of the device are
used, some of them are compared with those of the CPU: kernels that compute something else without
an error are known (https://github.com/pytorch/pytorch/issues/175189).
"""

from typing import TYPE_CHECKING

from thresher.errors import InvalidValueError

if TYPE_CHECKING:
    import torch

TESTED = ("cpu", "cuda")
TOLERANCE = 0.01
"""Largest difference, as a share: float32 sums in another order differ by less than 0.001."""
FLOOR = 0.01
"""Parts this small, as a share of the largest, are compared with that share instead: they may be
rounding errors, as is the gradient of a bias before batch norm."""


def is_tested(device: "torch.device") -> bool:
    """Return whether the whole of Thresher is tested on this type of device."""
    return device.type in TESTED


def host_of(device: "torch.device") -> "torch.device":
    """Return where images are prepared and float64 is computed for a network on `device`."""
    import torch

    return device if is_tested(device) else torch.device("cpu")


def wide(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a tensor in float64, on `host_of` its device."""
    return tensor.to(host_of(tensor.device)).double()


def moved(tensor: "torch.Tensor", device: "torch.device") -> "torch.Tensor":
    """Return a tensor of `host_of(device)` on the device, contiguous if it has to be moved."""
    return tensor if is_tested(device) else tensor.contiguous().to(device)


def check_agreement(
    what: str, device: "torch.device", computed: "list[torch.Tensor]", on_cpu: "list[torch.Tensor]"
) -> None:
    """Raise InvalidValueError unless tensors of the device agree with those of the CPU."""
    pairs = [(wide(a.detach()), wide(b.detach())) for a, b in zip(computed, on_cpu, strict=True)]
    largest = max(float(b.norm()) for _, b in pairs)
    for a, b in pairs:
        allowed = TOLERANCE * max(float(b.norm()), FLOOR * largest)
        apart = float((a - b).norm())
        if not apart <= allowed:  # nan, too
            share = TOLERANCE * apart / allowed if allowed else float("inf")
            raise InvalidValueError(
                f"{device.type} computes other {what} than the CPU: they differ by {share:.1%}",
                "use device cpu, or a newer version of torch",
                "device",
            )
