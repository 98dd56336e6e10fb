"""What a recipe must see before it says that a claim holds, without training anything."""

import itertools

import numpy as np

from thresher.recipes import ornl_fig5, ornl_pretrained
from thresher.study import reading
from thresher.study.analysis import analyse
from thresher.study.results import Trial


def test_a_fall_from_the_smallest_batch_does_not_show_a_preferred_one() -> None:
    content = ornl_fig5.definition("smoke")
    grid, random = content["grid"], np.random.default_rng(0)
    places = itertools.product(grid["model"], grid["lr"], grid["batch_size"])
    curves = {0.01: [90, 80, 70, 60], 0.1: [80, 90, 70, 60]}
    trials = [
        Trial(cell={"model": model, "lr": lr, "batch_size": batch}, seed=seed, value=value)
        for model, lr, batch in places
        for mean in [curves[lr][grid["batch_size"].index(batch)]]
        for seed, value in enumerate(random.normal(mean, 0.1, 3))
    ]
    rows = ornl_fig5.rows(analyse(trials, reading.from_dict(content)))
    shapes = [row for row in rows if "beyond it accuracy falls" in row.paper]
    assert [row.holds for row in shapes] == ["partly", "yes", "partly", "yes"]


def test_a_pretrained_extractor_is_held_to_the_gains_of_the_paper() -> None:
    content = ornl_pretrained.definition("gpu")
    assert content["grid"]["selection"][0] == "full"
    assert content["claimed"] == {
        "pretrained - full @ batch_size=256": 0.6,
        "pretrained - random @ batch_size=256": 2.3,
        "pretrained - full @ batch_size=6272": 2.3,
    }
