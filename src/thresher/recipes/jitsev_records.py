"""Claim J4 (Jitsev 2021): ResNet-50 records, each predicted from others."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support.differences import PaperSettings

if TYPE_CHECKING:
    from thresher.lab.records import RecordPrediction


def run(out: Path, table: Path | None = None) -> RecipeResult:
    from thresher.lab.records import RecordTimes, load_records
    from thresher.recipes.support.networks import resnet50_profile

    records = load_records(table)
    profile = resnet50_profile(32)
    times = RecordTimes(profile, records)
    one = times.left_out(lambda record: record.name)
    family = times.left_out(lambda record: record.family)
    one_fixed = times.left_out(lambda record: record.name, fixed=True)
    family_fixed = times.left_out(lambda record: record.family, fixed=True)
    rows = [_row(*three) for three in zip(one, family, one_fixed, strict=True)]
    share, fixed_s = times.fit_all()
    data = {
        "leave_one_out": median_error(one),
        "leave_one_family_out": median_error(family),
        "fixed_cost": {
            "leave_one_out": median_error(one_fixed),
            "leave_one_family_out": median_error(family_fixed),
            "seconds_per_step": fixed_s,
            "share_of_peak": share,
        },
        "beyond_factor_2": [p.record.name for p in one if not 1 / 2 <= p.ratio <= 2],
        "flops_per_image": profile.flops,
        "gradient_bytes": profile.gradient_bytes,
    }
    rows += [
        _summary("each row left out of its fit (interpolation)", one, one_fixed),
        _summary("each device family left out of its fit", family, family_fixed),
    ]
    return RecipeResult(rows, data)


def median_error(predictions: "Sequence[RecordPrediction]") -> float:
    """Return the median of |predicted / published − 1|."""
    return median(abs(prediction.ratio - 1) for prediction in predictions)


def _row(
    one: "RecordPrediction", family: "RecordPrediction", fixed: "RecordPrediction"
) -> ClaimRow:
    record = one.record
    near = 1 / 2 <= one.ratio <= 2
    kind = "interpolated" if one.relatives else "extrapolated"
    epochs = f"{record.epochs:g} epochs{'' if record.epochs_source else ' assumed'}"
    return ClaimRow(
        "J4",
        f"{record.name}: {_duration(record.published_s)}, batch {record.batch_size:,}, "
        f"{record.devices:,}×{record.device}, {epochs}",
        f"{_duration(one.predicted_s)} predicted ({kind}), {one.ratio:.2f}× as long; "
        f"{family.ratio:.2f}× without other {record.family} rows",
        "yes" if abs(one.ratio - 1) <= 0.3 else "partly" if near else "no",
        note=record.note if abs(one.ratio - 1) > 0.3 else "",
        values={
            "name": record.name,
            "published_s": record.published_s,
            "predicted_s": one.predicted_s,
            "ratio": one.ratio,
            "ratio_without_family": family.ratio,
            "ratio_with_fixed_cost": fixed.ratio,
            "interpolated": bool(one.relatives),
            "family": record.family,
            "epochs": record.epochs,
            "epochs_source": record.epochs_source or "assumed",
            "share_of_peak": one.share,
            "explained": bool(record.note),
        },
    )


def _summary(
    what: str, plain: "Sequence[RecordPrediction]", fixed: "Sequence[RecordPrediction]"
) -> ClaimRow:
    error, with_fixed = median_error(plain), median_error(fixed)
    return ClaimRow(
        "J4",
        f"median error, {what}",
        f"{error:.0%}; {with_fixed:.0%} with a fixed cost of a step as second parameter",
        "yes" if error <= 0.3 else "no",
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"


RECIPE = Recipe(
    "jitsev-records",
    "J4",
    "ResNet-50 / ImageNet records predicted from data sheets, each left out of its fit",
    {"smoke": run, "gpu": run, "paper": run},
    paper=PaperSettings(
        {"times": "measured"},
        {preset: {"times": "predicted from data sheets"} for preset in ("smoke", "gpu", "paper")},
    ),
    with_table=run,
)
