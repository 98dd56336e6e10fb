"""What the recipes of McCord & Dash 2021 share.

The paper trains ResNet-50 on ImageNet for 90 epochs with the rate divided by ten at epochs 30, 60
and 90. The gpu preset trains ResNet-18 on CIFAR-10 with batches that give as many steps per epoch
as the paper's: 150 of 50,000 images stand for 3,840 of ImageNet's 1.28 million. `paper` needs a
pack of ImageNet named `imagenet` in the cache.
"""

from collections.abc import Callable

from thresher.recipes.base import ClaimRow, Recipe
from thresher.recipes.support import studies
from thresher.study.analysis import Analysis
from thresher.study.tasks import Values

SCHEDULE = {"schedule": "step", "lr_rule": "linear"}
PAPER: Values = {
    "data": "imagenet",
    "model": "resnet50",
    "epochs": 90,
    **SCHEDULE,
    "lr": 0.0125,
    "warmup_epochs": 5,
    "step_epochs": [30.0, 60.0, 90.0],
}
"""What was published for training, and nothing else."""
BASES: dict[str, Values] = {
    "smoke": {**studies.SMOKE, **SCHEDULE, "lr": 0.05, "base_batch": 32, "step_epochs": [4.0, 8.0]},
    "gpu": {
        **studies.GPU,
        **SCHEDULE,
        "epochs": 90,
        "lr": 0.0125,
        "base_batch": 32,
        "step_epochs": [30.0, 60.0],
    },
    "paper": {
        **PAPER,
        "image_size": 224,
        "base_batch": 32,
        "micro_batch": "auto",
    },
}
DATA = {preset: base["data"] for preset, base in BASES.items()}
"""The pack that each preset reads."""
LARGE_BATCHES = [3840, 7680, 15360, 23040, 30720]
MATCHED_BATCHES = [150, 300, 600, 900, 1200]
"""On CIFAR-10, with the steps per epoch of `LARGE_BATCHES` on ImageNet."""
BATCHES = {"smoke": [64, 256, 480], "gpu": MATCHED_BATCHES, "paper": LARGE_BATCHES}
SEEDS = {"smoke": 3, "gpu": 8, "paper": 4}


def recipe(
    name: str,
    claim: str,
    title: str,
    definition: Callable[[str], Values],
    rows: Callable[[Analysis], list[ClaimRow]],
    published: Values,
) -> Recipe:
    """Return the recipe of one claim, with the axes that were `published`."""
    cluster = {"workers": 240, "engine": "horovod"}
    presets = {preset: definition(preset) for preset in BASES}
    paper = studies.paper({**PAPER, **cluster, **published}, presets)
    reproduce = studies.one_study(definition, rows)
    return studies.study_recipe(name, claim, title, reproduce, paper, DATA)


def study(preset: str, title: str, grid: Values) -> Values:
    """Return the study of one claim; what it compares is added by its recipe."""
    base = {k: v for k, v in BASES[preset].items() if k not in grid}
    return {"title": title, "base": base, "grid": grid, "seeds": SEEDS[preset]}
