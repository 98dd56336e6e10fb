"""The record table of ResNet-50 on ImageNet, predicted from data sheets.

A run is described by its batch, devices, links and epochs, and the model's operations are counted.
One number, the share of the peak that convolutions reach, is fitted: for each run, to the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thresher.scaling.cluster import UNLIMITED, Cluster, Device, DevicePrecision
from thresher.scaling.profile import Profile
from thresher.scaling.step import PredictedStep, StepConfig, predict_step

IMAGES = 1_281_167
EPOCHS = 90
SHARES = [0.05 * 1.03**k for k in range(101)]
"""Candidate shares of the peak: 5 % to 96 %."""


@dataclass(frozen=True)
class Record:
    """One published run. Rates are from data sheets; links in 10⁹ bytes per second."""

    name: str
    batch_size: int
    devices: int
    device: str
    peak_tflops: float
    memory_gbs: float
    precision: DevicePrecision
    node: int
    inner_gbs: float
    outer_gbs: float
    published_s: float
    schedule: tuple[tuple[float, int], ...] = ()
    """(share of the epochs, batch) if the batch changed during the run; else empty."""
    note: str = ""
    """What explains a prediction that is far off."""


# Times and batches are those of the published table; the rest are hardware figures. P100: 10.6
# Tflop/s in float32 and 732 GB/s; P40: 11.8 and 346 (half-precision storage, float32 arithmetic);
# TPU v2: 45 and 600 per chip (256 chips per pod); TPU v3: 123 and 900; V100: 125 (matrix units)
# and 900. Links: NVLink or PCIe inside a node, 50 GbE (Goyal), 2×FDR (Akiba), 100 Gbit/s (Jia), the
# TPUs' own torus, 2×EDR per node of four (Mikami, Yamazaki: the same machine, ABCI).
RECORDS = (
    Record("He et al.", 256, 8, "P100", 10.6, 732, "fp32", 8, 20, 20, 29 * 3600),
    Record("Goyal et al.", 8_192, 256, "P100", 10.6, 732, "fp32", 8, 20, 6.25, 3600),
    Record(
        *("Smith et al.", 8_192, 256, "TPU v2", 45, 600, "bf16", 4, 62, 248, 1800),
        schedule=((1 / 3, 8_192), (2 / 3, 16_384)),
        note="batch 8,192 for the first 30 epochs, then 16,384; the table gives only “full TPU "
        "pod”, assumed to be 256 chips of version 2",
    ),
    Record("Akiba et al.", 32_768, 1_024, "P100", 10.6, 732, "fp32", 8, 12, 13.6, 900),
    Record("Jia et al.", 65_536, 2_048, "P40", 11.8, 346, "fp16", 8, 12, 12.5, 396),
    Record("Ying et al.", 65_536, 1_024, "TPU v3", 123, 900, "bf16", 4, 82, 328, 108),
    Record(
        *("Mikami et al.", 55_296, 3_456, "V100", 125, 900, "fp16", 4, 50, 25, 120),
        note="16 images per GPU: the published time is 58 ms per step, more than Yamazaki's 51 ms "
        "for 40 images on the same machine. Costs other than images and bytes (framework, kernel "
        "launches, evaluation) do not shrink with the batch, and no other run has so few images "
        "per GPU to fit them to; the authors also increase the batch during the run (“batch-size "
        "control”), so 55,296 is the largest batch, not the only one",
    ),
    Record("Yamazaki et al.", 81_920, 2_048, "V100", 125, 900, "fp16", 4, 50, 25, 72),
)


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
    config = StepConfig(
        batch_size=batch // record.devices, precision=record.precision, compress=compress
    )
    return predict_step(profile, cluster, record.devices, config)


def predicted_seconds(record: Record, profile: Profile, share: float) -> float:
    """Predict the seconds of the whole run: epochs × images / batch steps for each batch."""
    total = 0.0
    for part, batch in record.schedule or ((1.0, record.batch_size),):
        steps = part * EPOCHS * IMAGES / batch
        total += steps * predicted_step(record, profile, share, batch).step_s
    return total


@dataclass(frozen=True)
class RecordPrediction:
    """A record predicted from the fit to the others."""

    record: Record
    share: float
    """The fitted share of the peak."""
    predicted_s: float

    @property
    def ratio(self) -> float:
        """Predicted over published time."""
        return self.predicted_s / self.record.published_s


def leave_one_out(profile: Profile, records: Sequence[Record] = RECORDS) -> list[RecordPrediction]:
    """Predict each record with the share of the peak that fits the others best.

    Best is the least sum of |log(predicted / published)|: absolute rather than squared errors limit
    the influence of an outlier. Takes about a second.
    """
    seconds = [[predicted_seconds(r, profile, share) for share in SHARES] for r in records]
    errors = [
        [abs(math.log(s / record.published_s)) for s in row]
        for record, row in zip(records, seconds, strict=True)
    ]
    predictions = []
    for left_out, record in enumerate(records):
        others = [row for index, row in enumerate(errors) if index != left_out]
        best = min(range(len(SHARES)), key=lambda at: sum(row[at] for row in others))
        predictions.append(RecordPrediction(record, SHARES[best], seconds[left_out][best]))
    return predictions
