"""A synthetic profile whose predictions can be checked by hand."""

from dataclasses import replace

from thresher.scaling.profile import BatchTimes, DeviceInfo, Layer, Profile

BATCHES = (64, 16, 4, 1)


def make_profile(fixed_s: float = 0.0) -> Profile:
    """Ten equal layers of a million weights: 0.1 and 0.2 ms per image plus `fixed_s` each way."""
    layers = [
        Layer(
            name=f"layer{index}",
            kind="Conv2d",
            parameters=1_000_000,
            flops=2e8,
            activation_bytes=1e5,
            forward_s={b: 1e-4 * b + fixed_s for b in BATCHES},
            backward_s={b: 2e-4 * b + fixed_s for b in BATCHES},
        )
        for index in range(10)
    ]
    times = [
        BatchTimes(
            batch=b,
            forward_s=10 * (1e-4 * b + fixed_s),
            backward_s=10 * (2e-4 * b + fixed_s),
            optimizer_s=1e-3,
            step_s=10 * (3e-4 * b + 2 * fixed_s) + 1e-3,
            spread=0.0,
        )
        for b in BATCHES
    ]
    return Profile(
        model="tiny",
        classes=10,
        channels=3,
        image_size=32,
        batch_size=64,
        precision="fp32",
        device=DeviceInfo("cuda", "V100-SXM2-16GB"),
        parameters=10_000_000,
        gradient_bytes=40_000_000,
        sample_bytes=3072,
        layers=tuple(layers),
        batches=tuple(times),
    )


def digits_profile() -> Profile:
    """The same with images of the shape of the digits."""
    return replace(make_profile(), channels=1, image_size=8, sample_bytes=64)
