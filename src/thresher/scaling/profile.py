"""A profile: what one model costs on one machine, layer by layer, as a JSON file.

The file holds the fields of `Profile` and `"format": 1`. Times are seconds; tables by batch size
have the batch as a string key.
"""

import bisect
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from thresher.errors import InvalidValueError
from thresher.models.registry import source_digest
from thresher.options import from_mapping, option
from thresher.paths import read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class DeviceInfo:
    """The device that a profile was measured on."""

    kind: str
    """cpu, cuda, or none for a profile without times."""
    name: str
    threads: int = option(1, ge=1)
    cores: int = option(1, ge=1)


@dataclass(frozen=True)
class Layer:
    """One leaf module. Times are seconds per call, by batch size."""

    name: str
    kind: str
    """Class name of the module."""
    parameters: int = option(ge=0)
    flops: float = option(ge=0)
    """Forward operations per image; a multiply-add counts as two."""
    activation_bytes: float = option(ge=0)
    """Bytes written per image."""
    forward_s: dict[int, float] = option(ge=0)
    backward_s: dict[int, float] = option(ge=0)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradient in float32."""
        return 4 * self.parameters


@dataclass(frozen=True)
class BatchTimes:
    """Median times of a whole step at one batch size."""

    batch: int = option(ge=1)
    forward_s: float = option(ge=0)
    backward_s: float = option(ge=0)
    optimizer_s: float = option(ge=0)
    step_s: float = option(ge=0)
    spread: float = option(ge=0)
    """Relative interquartile range of the step over 1.35, which is σ of a normal distribution."""


@dataclass(frozen=True)
class AllReducePoint:
    """Median seconds of an all-reduce of one message size."""

    bytes: float = option(gt=0)
    seconds: float = option(gt=0)


@dataclass(frozen=True)
class AllReduceTimes:
    """All-reduces of a group of workers, and the latency and bandwidth fitted to them."""

    workers: int = option(ge=2)
    backend: str = option()
    points: tuple[AllReducePoint, ...] = option()
    latency_s: float = option(ge=0)
    seconds_per_byte: float = option(ge=0)
    error: float = option(ge=0)
    """Median relative error of the fit."""


@dataclass(frozen=True)
class OverlapTimes:
    """A DDP step of a group of workers, against the same step without communication."""

    workers: int = option(ge=1)
    batch_size: int = option(ge=1)
    """The global batch."""
    step_s: float = option(ge=0)
    compute_s: float = option(ge=0)
    """The step without communication."""
    communication_s: float = option(ge=0)
    """The all-reduces alone."""
    exposed_s: float = option(ge=0)
    """Communication that the backward pass does not hide."""
    hidden: float = option(ge=0, le=1)
    """Share of the communication that the backward pass hides."""


@dataclass(frozen=True)
class InputSpeed:
    """Reading speed of one worker that gathers random batches of a pack."""

    pack: str
    samples: int = option(ge=1)
    images_per_s: float = option(gt=0)
    bytes_per_s: float = option(gt=0)


@dataclass(frozen=True)
class Profile:
    """What one model costs on one machine."""

    model: str
    classes: int = option(ge=1)
    channels: int = option(ge=1)
    image_size: int = option(ge=1)
    batch_size: int = option(ge=1)
    precision: str = option()
    device: DeviceInfo = option()
    parameters: int = option(ge=0)
    gradient_bytes: int = option(ge=0)
    sample_bytes: int = option(ge=0)
    layers: tuple[Layer, ...] = option()
    """In forward order."""
    batches: tuple[BatchTimes, ...] = option()
    """Largest batch first."""
    allreduce: AllReduceTimes | None = None
    overlap: OverlapTimes | None = None
    input: InputSpeed | None = None
    versions: dict[str, str] | None = None
    hardware: dict[str, str | int] | None = None
    steps: Literal["captured", "ordinary"] = "ordinary"
    """How steps were timed: captured in a CUDA graph, as `train` runs them on one GPU, or kernel by
    kernel. Times of captured steps are divided among the layers as ordinary ones are."""
    created: str = ""
    model_source: str | None = None
    """Checksum of the file of a network that is given as package.module:function."""

    @property
    def flops(self) -> float:
        """Forward operations per image; a multiply-add counts as two."""
        return sum(layer.flops for layer in self.layers)

    def save(self, path: Path | str) -> None:
        """Write the profile as JSON."""
        write_json(path, {**asdict(self), "format": FORMAT})

    @classmethod
    def load(cls, path: Path | str, model: str | None = None) -> "Profile":
        """Read a profile and check every field; `model`, if given, must be the profile's."""
        raw = read_json(path, "profile")
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            fix = "create one with `thresher scale measure`"
            raise InvalidValueError(f"{path} is not a profile of format {FORMAT}", fix)
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in raw.items() if key in known}
        profile = from_mapping(cls, values, f"profile {path}")
        batches = {times.batch for times in profile.batches}
        tables = [table for x in profile.layers for table in (x.forward_s, x.backward_s)]
        if not batches or not tables or not all(batches <= set(table) for table in tables):
            what = f"profile {path} has no times of some layers or batches"
            raise InvalidValueError(what, "measure again")
        if model is not None and profile.model != model:
            fix = f"measure {model} with `thresher scale measure`"
            raise InvalidValueError(f"profile {path} is of model {profile.model}, not {model}", fix)
        source = None if model is None else source_digest(model)
        if source is not None and profile.model_source not in (None, source):
            what = f"the file of {model} was changed after profile {path} had been measured"
            raise InvalidValueError(what, "restore it, or measure again")
        return profile


def at_batch(times: dict[int, float], batch: float) -> float:
    """Interpolate seconds at a batch size.

    Linear in log-log between the measured batches, proportional to the batch above the largest,
    and constant below the smallest.
    """
    known = sorted(times)
    if batch >= known[-1]:
        return times[known[-1]] * batch / known[-1]
    if batch <= known[0]:
        return times[known[0]]
    right = bisect.bisect_left(known, batch)
    low, high = known[right - 1], known[right]
    a, b = max(times[low], 1e-12), max(times[high], 1e-12)
    part = math.log(batch / low) / math.log(high / low)
    return a * (b / a) ** part
