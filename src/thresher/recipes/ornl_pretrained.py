"""Claim O7 (Gahlot et al. 2020): a pretrained extractor works as well as one trained from scratch.

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
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

PAIRS = [("pretrained", "network"), ("pretrained", "random")]
IMAGENET: Values = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

STUDIES: dict[str, Values] = {
    "smoke": studies.filtered("smoke", "tiny", {"batch_size": [64, 256]}, seeds=4),
    "gpu": studies.filtered("gpu", "resnet101", {"batch_size": [256, 6272]}, seeds=8),
    "paper": studies.filtered("paper", "resnet101", {"batch_size": [256, 6272]}, seeds=8),
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
    cells = {"batch_size": study["grid"]["batch_size"]}
    return {
        "title": "Filtered by a pretrained extractor, or by one trained from scratch",
        "compare": "selection",
        "pairs": PAIRS,
        "primary": studies.in_each_cell(PAIRS, cells),
        **study,
        "grid": {**study["grid"], "selection": ["network", "pretrained", "random"]},
        "steps": steps,
    }


def rows(analysis: Analysis) -> list[ClaimRow]:
    lines = []
    for comparison in (c for c in analysis.verdicts if c.cell):
        batch = comparison.cell["batch_size"]
        judge, claim = holds.if_better, "is better than dropping at random"
        if comparison.baseline == "network":
            judge, claim = holds.if_equal, "works as well as one from scratch"
        paper = f"batch {batch:,}: a pretrained extractor {claim}"
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
        {**studies.PAPER, "extractor": "resnet101", **PRETRAINED["paper"]},
        {
            preset: {**studies.settings(study), **PRETRAINED[preset]}
            for preset, study in STUDIES.items()
        },
    ),
)
