"""Claim J4 (Jitsev 2021): ResNet-50 records, each predicted from the seven others."""

from pathlib import Path
from statistics import median

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support.differences import PaperSettings


def run(out: Path) -> RecipeResult:
    from thresher.lab.records import leave_one_out
    from thresher.models.registry import build
    from thresher.scaling.skeleton import skeleton

    profile = skeleton(build("resnet50", 1000), "resnet50", (3, 224, 224), 1000, 32)
    predictions = leave_one_out(profile)
    rows = []
    for prediction in predictions:
        record = prediction.record
        near = 1 / 2 <= prediction.ratio <= 2
        rows.append(
            ClaimRow(
                "J4",
                f"{record.name}: {_duration(record.published_s)}, batch {record.batch_size:,}, "
                f"{record.devices:,}×{record.device}",
                f"{_duration(prediction.predicted_s)} predicted, {prediction.ratio:.2f}× as long",
                "yes" if abs(prediction.ratio - 1) <= 0.3 else "partly" if near else "no",
                note=record.note if abs(prediction.ratio - 1) > 0.3 else "",
                values={
                    "name": record.name,
                    "published_s": record.published_s,
                    "predicted_s": prediction.predicted_s,
                    "ratio": prediction.ratio,
                    "share_of_peak": prediction.share,
                    "explained": bool(record.note),
                },
            )
        )
    data = {
        "median_error": median(abs(prediction.ratio - 1) for prediction in predictions),
        "beyond_factor_2": [p.record.name for p in predictions if not 1 / 2 <= p.ratio <= 2],
        "flops_per_image": profile.flops,
        "gradient_bytes": profile.gradient_bytes,
    }
    return RecipeResult(rows, data)


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
)
