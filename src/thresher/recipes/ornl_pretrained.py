"""Claim O7 (Gahlot et al. 2020): the filter also works with a pretrained extractor.

"Our technique works with a pre-trained ResNet-101 used as a feature extractor as well": so it is
held to the gains that the paper reports of the filter. Whether a pretrained extractor is as good as
a trained one is our question.

The paper takes the features of a ResNet-101 that was pretrained on ImageNet. The preset paper reads
its weights from `weights/resnet101-imagenet.safetensors` in the cache folder (torchvision provides
them). The preset gpu takes a network whose weights pip can install, and smoke pretrains a small one
on drawn shapes.
"""

from pathlib import Path

from thresher.errors import NotFoundError
from thresher.models.embed_config import EFFICIENTNET
from thresher.paths import RunPaths, home
from thresher.recipes.base import ClaimRow, RecipeResult
from thresher.recipes.ornl_fig6 import RESULTS as FIGURE_6
from thresher.recipes.ornl_fig7 import CLAIMED, LARGE
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

PAIRS = [("pretrained", other) for other in ("full", "random", "network")]
RESULTS = {(256, other): FIGURE_6[256, other][0] for other in ("full", "random")}
RESULTS[LARGE, "full"] = CLAIMED
"""Gains in points that the paper reports of the filter, by batch size and the arm compared with."""
PUBLISHED_DECAY: Values = {"weight_decay": 0.005}
"""The paper's, with filtered data at batch 256 and with all arms at large batches."""
IMAGENET: Values = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

GRID = {"batch_size": [256, LARGE]}
STUDIES: dict[str, Values] = {
    "smoke": studies.filtered("smoke", "tiny", {"batch_size": [64, 256]}, seeds=4),
    # Batch norm as on the paper's eight GPUs.
    "gpu": studies.filtered(
        "gpu", "resnet101", GRID, seeds=8, **PUBLISHED_DECAY, batch_norm="ghost:1/8"
    ),
    "paper": studies.filtered("paper", "resnet101", GRID, seeds=8, **PUBLISHED_DECAY),
}
PRETRAINED: dict[str, Values] = {
    "smoke": {"pretrained_extractor": "tiny", "pretrained_on": "drawn shapes"},
    "gpu": {"pretrained_extractor": EFFICIENTNET, "pretrained_on": "ImageNet"},
    "paper": {"pretrained_extractor": "resnet101", "pretrained_on": "ImageNet"},
}
EXTRACTORS: dict[str, Values] = {
    "smoke": {"model": "tiny"},
    "gpu": {"model": EFFICIENTNET},
    "paper": {"model": "resnet101", "image_size": 224, **IMAGENET},
}


def definition(preset: str, weights: str | None = None) -> Values:
    """Return the study: filtered by the features of a pretrained network, or of a trained one.

    `weights` is the file of those of the pretrained network, unless it comes with them.
    """
    study = STUDIES[preset]
    steps = dict(study["steps"])
    steps["pretrained-features"] = {"do": "embed", **EXTRACTORS[preset]}
    if weights is not None:
        steps["pretrained-features"]["weights"] = weights
    steps["pretrained"] = {**steps["network"], "features": "pretrained-features"}
    batches = study["grid"]["batch_size"]
    claimed = {
        f"pretrained - {other} @ batch_size={batch}": gain
        for (batch, other), gain in RESULTS.items()
        if batch in batches
    }
    return {
        "title": "Filtered by a pretrained extractor, or by one trained from scratch",
        "compare": "selection",
        "pairs": PAIRS,
        "primary": studies.in_each_cell(PAIRS, {"batch_size": batches}),
        **({"claimed": claimed} if claimed else {}),
        **study,
        "grid": {**study["grid"], "selection": ["full", "network", "pretrained", "random"]},
        "steps": steps,
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    lines = []
    for comparison in (c for c in analysis.verdicts if c.cell):
        batch, other = comparison.cell["batch_size"], comparison.baseline
        gain = f" by {comparison.claimed:g} points" if comparison.claimed else ""
        judge = holds.if_better
        paper = f"batch {batch:,}: filtered by a pretrained extractor, above {other}{gain}"
        if other == "network":
            judge = holds.if_equal
            claim = "a pretrained extractor is as good as a trained one"
            paper = f"our question: batch {batch:,}: {claim}"
        measured = " against ".join(studies.means(analysis, comparison).values())
        row = studies.claim_row("O7", paper, measured, comparison, judge, batch_size=batch)
        lines.append(row)
    return lines


def pretrained_weights(preset: str, out: Path) -> Path | None:
    """Return the file of pretrained weights, unless the network comes with them.

    The smoke preset trains them first.
    """
    if preset == "gpu":
        from thresher.models.pretrained import weights_file

        weights_file()  # raises if it is not installed
        return None
    if preset == "paper":
        file = home() / "weights" / "resnet101-imagenet.safetensors"
        if not file.exists():
            raise NotFoundError(
                f"{file} not found",
                "save torchvision's pretrained resnet101 there as safetensors",
            )
        return file
    from thresher.recipes.support.shapes import shapes_pack
    from thresher.training.config import TrainConfig
    from thresher.training.train import train

    pack, run = shapes_pack(out / "shapes.pack"), out / "pretraining"
    options = {**STUDIES["smoke"]["base"], "data": str(pack.root), "batch_size": 64}
    train(TrainConfig(**options, out=str(run), resume=True), quiet=True)
    return RunPaths(run).model


def reproduce(preset: str, out: Path) -> RecipeResult:
    weights = pretrained_weights(preset, out)
    content = definition(preset, None if weights is None else str(weights.resolve()))
    analysis = studies.run(preset, out / "study", **content)
    return studies.result(rows(analysis), out / "study")


RECIPE = studies.study_recipe(
    "ornl-pretrained",
    "O7",
    "a pretrained extractor against one trained from scratch",
    reproduce,
    PaperSettings(
        {**studies.PAPER, **PUBLISHED_DECAY, **studies.FILTER, **PRETRAINED["paper"]},
        {
            preset: {**studies.settings(study), **PRETRAINED[preset]}
            for preset, study in STUDIES.items()
        },
    ),
)
