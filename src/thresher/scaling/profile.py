"""A profile: what one model costs on one machine, layer by layer, as a JSON file.

    format              1
    model, classes, channels, image_size, batch_size, precision
    device              kind (cpu | cuda), name, threads, cores
    parameters, gradient_bytes, sample_bytes
    layers              in forward order: name, kind, parameters, flops (forward, per image),
                        activation_bytes (written per image), forward_s and backward_s by batch
    batches             per batch: batch, forward_s, backward_s, optimizer_s, step_s, spread
    allreduce           null, or workers, backend, points [{bytes, seconds}], latency_s,
                        seconds_per_byte, error
    overlap             null, or workers, batch_size, step_s, compute_s, communication_s,
                        exposed_s, hidden (share of communication behind the backward pass)
    input               null, or pack, samples, images_per_s, bytes_per_s
    versions, hardware, created

`spread` is the relative interquartile range of the step over 1.35, which is σ of a normal one.
"""

import bisect
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from thresher.errors import ThresherError
from thresher.paths import read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class Layer:
    """One leaf module. Times are seconds per call, keyed by batch size."""

    name: str
    kind: str
    parameters: int
    flops: float
    activation_bytes: float
    forward_s: dict[int, float]
    backward_s: dict[int, float]

    @property
    def gradient_bytes(self) -> int:
        return 4 * self.parameters


@dataclass(frozen=True)
class BatchTimes:
    """A whole step at one batch: medians, and how much they vary."""

    batch: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    spread: float


@dataclass(frozen=True)
class Profile:
    """See the head of the file."""

    model: str
    classes: int
    channels: int
    image_size: int
    batch_size: int
    precision: str
    device: dict[str, Any]
    parameters: int
    gradient_bytes: int
    sample_bytes: int
    layers: list[Layer]
    batches: list[BatchTimes]
    allreduce: dict[str, Any] | None = None
    overlap: dict[str, Any] | None = None
    input: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    hardware: dict[str, Any] | None = None
    created: str = ""
    format: int = FORMAT

    @property
    def flops(self) -> float:
        """Forward operations per image (a multiply-add counts as two)."""
        return sum(layer.flops for layer in self.layers)

    def save(self, path: Path | str) -> None:
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path | str, model: str | None = None) -> "Profile":
        """Read a profile; one of another model than `model` is refused."""
        raw = read_json(path, "profile")
        if not isinstance(raw, dict) or raw.get("format") != FORMAT or "layers" not in raw:
            raise ThresherError(
                f"{path} is not a profile of format {FORMAT}",
                "make one: `thresher scale measure --model … --out profile.json`",
            )
        known = {field.name for field in fields(cls)}
        required = known - {
            "allreduce",
            "overlap",
            "input",
            "versions",
            "hardware",
            "created",
            "format",
        }
        missing = sorted(required - set(raw))
        if missing:
            raise ThresherError(f"the profile {path} lacks {', '.join(missing)}", "measure again")
        if model is not None and raw["model"] != model:
            raise ThresherError(
                f"the profile {path} is of the model {raw['model']}, not {model}",
                f"`thresher scale measure --model {model} --out …`",
            )
        try:
            values = {key: value for key, value in raw.items() if key in known}
            values["layers"] = [_layer(item) for item in raw["layers"]]
            values["batches"] = [BatchTimes(**item) for item in raw["batches"]]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ThresherError(
                f"the profile {path} is damaged: {error}", "measure again"
            ) from None
        if not values["batches"] or not values["layers"]:
            raise ThresherError(f"the profile {path} holds no measurement", "measure again")
        return cls(**values)


def _layer(item: dict[str, Any]) -> Layer:
    times = {
        key: {int(batch): float(s) for batch, s in item[key].items()}
        for key in ("forward_s", "backward_s")
    }
    return Layer(**{**item, **times})


def at_batch(times: dict[int, float], batch: float) -> float:
    """Seconds at a batch between those measured: straight in log-log; beyond them in proportion
    above, and constant below (nothing gets cheaper than its smallest measured batch)."""
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
