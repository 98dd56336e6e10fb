"""The record table of ResNet-50 on ImageNet, predicted from data sheets.

A run is described by its batch, devices, links and epochs, and the model's operations are counted.
One number is fitted, the share of the peak that convolutions reach; on request also a second, the
fixed cost of a step. For each row they are fitted to other rows: to all others, or to those of
other device families.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from thresher.errors import InvalidValueError, NotFoundError
from thresher.options import from_mapping, option
from thresher.scaling.cluster import UNLIMITED, Cluster, Device, DevicePrecision
from thresher.scaling.profile import Profile
from thresher.scaling.step import PredictedStep, TorchStepConfig, predict_step

IMAGES = 1_281_167
SHARES = [0.05 * 1.03**k for k in range(101)]
"""Candidate shares of the peak: 5 % to 96 %."""
FIXED = [0.0, *(1e-3 * 1.12**k for k in range(41))]
"""Candidate fixed costs of a step: none, and 1 to 93 ms."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One published run. Rates are from data sheets; links in 10⁹ bytes per second."""

    name: str
    batch_size: int = option(ge=1)
    devices: int = option(ge=1)
    device: str
    family: str
    """Rows of one family share an architecture, and with it how much of the peak is reached."""
    peak_tflops: float = option(gt=0)
    memory_gbs: float = option(gt=0)
    precision: DevicePrecision = "fp32"
    node: int = option(ge=1)
    """Devices of a node."""
    inner_gbs: float = option(gt=0)
    outer_gbs: float = option(gt=0)
    published_s: float = option(gt=0)
    epochs: float = option(90.0, gt=0)
    epochs_source: str = ""
    """Where the epochs are published; "" if they are assumed."""
    schedule: tuple[tuple[float, int], ...] = ()
    """(share of the epochs, batch) if the batch changed during the run; else empty."""
    note: str = ""
    """What explains a prediction that is far off."""

    @property
    def phases(self) -> list[tuple[float, int]]:
        """(steps, batch) of each part of the run."""
        parts = self.schedule or ((1.0, self.batch_size),)
        return [(part * self.epochs * IMAGES / batch, batch) for part, batch in parts]


def load_records(path: Path | None = None) -> list[Record]:
    """Return the published records and, with a TOML file, its `[[record]]` tables."""
    shipped = resources.files("thresher.lab").joinpath("records.toml").read_text(encoding="utf-8")
    records = _parse(shipped, "records.toml")
    if path is None:
        return records
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidValueError(f"{path} is not a file of records: not a text file") from None
    except OSError as error:
        raise NotFoundError(f"cannot read records {path}: {error.strerror}") from None
    records += _parse(text, str(path))
    names = [record.name for record in records]
    for name in names:
        if names.count(name) > 1:
            # Rows are left out of the fit by their names.
            raise InvalidValueError(f'two records are called "{name}" in {path}', "rename one")
    return records


def _parse(text: str, where: str) -> list[Record]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValueError(f"{where} is not valid TOML: {error}") from None
    rows = content.get("record")
    if set(content) != {"record"} or not isinstance(rows, list):
        fix = "describe each run in a table [[record]]"
        raise InvalidValueError(f"{where} must hold tables [[record]] and nothing else", fix)
    return [from_mapping(Record, row, f"[[record]] {n} of {where}") for n, row in enumerate(rows)]


def predicted_step(record: Record, profile: Profile, share: float, batch: int) -> PredictedStep:
    """Predict a step at the global `batch` with convolutions at `share` of the peak."""
    peaks = {record.precision: record.peak_tflops}
    cluster = Cluster(
        name=record.name,
        title=record.name,
        device=Device(record.device, 16, record.memory_gbs, peaks, (share, share, share)),
        devices_per_node=record.node,
        nodes=UNLIMITED,
        inner_latency_s=5e-6,
        inner_bytes_s=record.inner_gbs * 1e9,
        outer_latency_s=5e-6,
        outer_bytes_s=record.outer_gbs * 1e9,
    )
    compress = "none" if record.precision == "fp32" else "fp16"
    config = TorchStepConfig(
        scaling="strong", batch_size=batch, precision=record.precision, compress=compress
    )
    return predict_step(profile, cluster, record.devices, config)


@dataclass(frozen=True)
class RecordPrediction:
    """A record predicted from the fit to other rows."""

    record: Record
    share: float
    """The fitted share of the peak."""
    predicted_s: float
    relatives: int
    """Rows of the same family in the fit; with any, the prediction is an interpolation."""

    @property
    def ratio(self) -> float:
        """Predicted over published time."""
        return self.predicted_s / self.record.published_s


class RecordTimes:
    """The time of every record at every candidate share and fixed cost; takes about a second."""

    def __init__(self, profile: Profile, records: Sequence[Record]) -> None:
        self.records = list(records)
        shape = (len(SHARES), 1)
        seconds = np.zeros((len(records), len(SHARES), len(FIXED)))
        for index, record in enumerate(records):
            for steps, batch in record.phases:
                bare = [predicted_step(record, profile, x, batch).step_s for x in SHARES]
                seconds[index] += steps * (np.reshape(bare, shape) + np.array(FIXED))
        self.seconds = seconds
        published = np.array([record.published_s for record in records])
        self.errors = np.abs(np.log(seconds / published[:, None, None]))

    def left_out(
        self, group: Callable[[Record], str], fixed: bool = False
    ) -> list[RecordPrediction]:
        """Predict each record with the fit to the records of other groups.

        Best is the least sum of |log(predicted / published)|: absolute rather than squared errors
        limit the influence of an outlier. Without `fixed` the fixed cost of a step is 0.
        """
        predictions = []
        for index, record in enumerate(self.records):
            others = [n for n, r in enumerate(self.records) if group(r) != group(record)]
            share, cost = self._best(others, fixed)
            relatives = sum(self.records[n].family == record.family for n in others)
            predicted = float(self.seconds[index, share, cost])
            predictions.append(RecordPrediction(record, SHARES[share], predicted, relatives))
        return predictions

    def fit_all(self) -> tuple[float, float]:
        """Return the share of the peak and the fixed cost of a step that fit all rows."""
        share, cost = self._best(range(len(self.records)), fixed=True)
        return SHARES[share], FIXED[cost]

    def _best(self, rows: Sequence[int], fixed: bool) -> tuple[int, int]:
        if not rows:
            raise InvalidValueError("the records must be of two families or more")
        sums = self.errors[list(rows)].sum(axis=0)
        sums = sums if fixed else sums[:, :1]
        share, cost = np.unravel_index(int(sums.argmin()), sums.shape)
        return int(share), int(cost)
