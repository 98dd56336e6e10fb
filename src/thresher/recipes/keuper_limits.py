"""Claims K1 to K3 (Keuper): limits of data-parallel SGD, measured by layer and predicted."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.comparisons import ArmComparison

if TYPE_CHECKING:
    from thresher.scaling.cluster import Cluster
    from thresher.scaling.compute import AmdahlBound
    from thresher.scaling.predict import PredictionRow
    from thresher.scaling.profile import Profile

FDR = """
title = "K80 nodes on FDR InfiniBand, as in the paper"
[device]
name = "K80"
memory_gb = 12
memory_gbs = 240
peak_tflops = { fp32 = 4.1 }
[node]
devices = 1
link_gbs = 6.8
latency_us = 5
[network]
link_gbs = 6.8
latency_us = 5
[storage]
total_gbs = 100
node_gbs = 10
"""
SIZES_MB = {"AlexNet": 250, "GoogLeNet": 50, "ResNet-50": 100}
"""Sizes of the gradients in the paper."""
SIZES = {"smoke": (32, 32, 0.3), "gpu": (224, 256, 1.0), "paper": (224, 256, 3.0)}
"""Image side, batch size and seconds per batch size of what is measured."""
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ROUNDS = 3
"""Times that the layers are measured."""
LINEAR = 0.8
"""A speed-up above this share of the number of parts counts as not limited."""
SKINNY = "fully connected"


def run(size: tuple[int, int, float], out: Path) -> RecipeResult:
    from thresher.options import from_mapping
    from thresher.recipes.support.networks import alexnet, googlenet, resnet50_profile
    from thresher.report.scaling_figures import profile_figure
    from thresher.scaling.cluster import parse_cluster
    from thresher.scaling.compute import amdahl
    from thresher.scaling.measure import MeasureConfig, measure
    from thresher.scaling.predict import predict_rows
    from thresher.scaling.skeleton import skeleton
    from thresher.scaling.step import StepConfig

    image_size, batch, seconds = size
    whole = {
        "AlexNet": skeleton(alexnet(), "alexnet", (3, 224, 224), 1000, 256),
        "GoogLeNet": skeleton(googlenet(), "googlenet", (3, 224, 224), 1000, 32),
        "ResNet-50": resnet50_profile(32),
    }
    cluster = parse_cluster(FDR, "fdr", "fdr")
    strong = {
        name: predict_rows(profile, cluster, WORKERS, StepConfig(scaling="strong"))
        for name, profile in whole.items()
    }
    measured: dict[str, list[Profile]] = {}
    options = {"batch_size": batch, "image_size": image_size, "seconds_per_batch": seconds}
    for name in ("alexnet-small", "googlenet-small"):
        config = from_mapping(MeasureConfig, {"model": name, **options})
        measured[name] = [measure(config, statistic=min) for _ in range(ROUNDS)]
        measured[name][0].save(out / f"{name}.json")
        profile_figure(measured[name][0], out / f"{name}.png")
    bounds = {name: [amdahl(p) for p in profiles] for name, profiles in measured.items()}
    skinny = [_speedups(profile) for profile in measured["alexnet-small"]]
    rows = [_sizes(whole), *(_bound(name, strong[name]) for name in strong)]
    rows += small_batches(bounds, skinny, measured["alexnet-small"][0].device.name)
    rows.append(_hard(whole, cluster))
    data = {
        "gradient_bytes": {n: p.gradient_bytes for n, p in whole.items()},
        "strong": {n: [asdict(row) for row in rows] for n, rows in strong.items()},
        "amdahl": {name: [asdict(b) for b in each] for name, each in bounds.items()},
        "skinny": [{"fully_connected": f, "convolutions": c} for f, c in skinny],
    }
    return RecipeResult(rows, data)


def _sizes(whole: dict[str, "Profile"]) -> ClaimRow:
    mega = {name: profile.gradient_bytes / 1e6 for name, profile in whole.items()}
    near = all(abs(mega[name] / size - 1) < 0.1 for name, size in SIZES_MB.items())
    published = ", ".join(f"{name} ~{size} MB" for name, size in SIZES_MB.items())
    counted = ", ".join(f"{name} {size:.0f} MB" for name, size in mega.items())
    paper = f"gradients are as large as the model: {published}"
    return ClaimRow("K1", paper, f"{counted} counted", "yes" if near else "no")


def _bound(name: str, rows: list["PredictionRow"]) -> ClaimRow:
    from thresher.scaling.predict import stops_paying

    stop = stops_paying(rows)
    ends = f"stops paying off at {stop.workers} nodes ({stop.limit})" if stop else "always pays off"
    at = stop or rows[-1]
    share = at.exposed_s / at.step_s
    bound = stop is not None and at.exposed_s >= at.compute_s
    return ClaimRow(
        "K1",
        f"communication bounds data-parallel {name} (K80, FDR), a step takes < 1 s",
        f"predicted: {ends}; there {100 * share:.0f} % of a step of {1e3 * at.step_s:.0f} ms is "
        "exposed communication",
        "yes" if bound and at.step_s < 1 else "partly" if stop else "no",
        note="predicted from counted operations and data sheets",
    )


def small_batches(
    bounds: Mapping[str, list["AmdahlBound"]], skinny: list[tuple[float, float]], device: str
) -> list[ClaimRow]:
    """Return the rows about small batches.

    Args:
        bounds: Speed-ups of splitting the batch, by network, one per round.
        skinny: Speed-ups of fully connected layers and convolutions, one pair per round.
        device: Where they were measured.
    """
    values: dict[tuple[str, str], dict[int, float]] = {}
    for name, rounds in bounds.items():
        values[name, "measured"] = {n: math.log(b.measured) for n, b in enumerate(rounds)}
        values[name, "limit"] = {n: math.log(LINEAR * b.hard) for n, b in enumerate(rounds)}
    values[SKINNY, "measured"] = {n: math.log(pair[0]) for n, pair in enumerate(skinny)}
    values[SKINNY, "limit"] = {n: math.log(pair[1]) for n, pair in enumerate(skinny)}
    pair = ("measured", "limit")
    analysis = studies.compare_values(
        values,
        ("what", "speed-up"),
        compare="speed-up",
        pairs=(pair,),
        margin=math.log(1.05),
        primary=tuple(studies.in_each_cell([pair], {"what": [*bounds, SKINNY]})),
    )
    tests = {c.cell["what"]: c for c in analysis.verdicts if c.cell}
    rows = [_free(name, rounds[0], tests[name], device) for name, rounds in bounds.items()]
    connected, convolved = (fmean(p[n] for p in skinny) for n in (0, 1))
    parts = next(iter(bounds.values()))[0].hard
    rows.append(
        ClaimRow(
            "K2",
            "small batches make skinny matrix products: fully connected layers scale worst",
            f"alexnet-small, batch {parts:.0f} split into {parts:.0f}: fully connected "
            f"{connected:.1f}×, convolutions {convolved:.1f}×",
            holds.if_worse(tests[SKINNY]),
            studies.corrected_ratio(tests[SKINNY]),
        )
    )
    return rows


def _free(name: str, bound: "AmdahlBound", comparison: ArmComparison, device: str) -> ClaimRow:
    top = bound.hard
    return ClaimRow(
        "K2",
        f"{name}: even without communication the speed-up of splitting batch {top:.0f} is limited",
        f"{bound.measured:.1f}× at {top:.0f} parts; Amdahl's bound {bound.bound:.1f}×, "
        f"{100 * bound.serial:.1f} % does not scale",
        holds.if_worse(comparison),
        studies.corrected_ratio(comparison),
        f"measured on {device} by layer, fastest of the repetitions, {comparison.n} rounds; the "
        f"interval is relative to {LINEAR:g} of the parts",
    )


def _speedups(profile: "Profile") -> tuple[float, float]:
    """Return the speed-ups of fully connected and convolutional layers from batch B to 1."""
    top, low = (pick(b.batch for b in profile.batches) for pick in (max, min))

    def speed(kind: str) -> float:
        layers = [x for x in profile.layers if x.kind == kind]
        big, small = (sum(x.forward_s[n] + x.backward_s[n] for x in layers) for n in (top, low))
        return big / small

    return speed("Linear"), speed("Conv2d")


def _hard(whole: dict[str, "Profile"], cluster: "Cluster") -> ClaimRow:
    from thresher.scaling.predict import predict_rows
    from thresher.scaling.step import StepConfig

    def speeds(batch: int) -> list[float]:
        config = StepConfig(scaling="strong", batch_size=batch)
        rows = predict_rows(whole["ResNet-50"], cluster, [batch, 2 * batch], config)
        return [row.images_per_s for row in rows]

    ends = all(later <= first for first, later in (speeds(32), speeds(256)))
    return ClaimRow(
        "K3",
        "b ≥ 1: batch 32 ends at 32 workers, 256 at 256",
        "no batch is faster on more workers than it has samples",
        "yes" if ends else "no",
        note="by construction; `thresher train` refuses more workers than the batch has samples",
    )


RECIPE = Recipe(
    "keuper-limits",
    "K1",
    "limits of data parallelism: communication, small matrix products, one sample per worker",
    {preset: partial(run, size) for preset, size in SIZES.items()},
    paper=PaperSettings(
        {"batch_size": "256 of AlexNet and 32 of GoogLeNet", "layers": "AlexNet and GoogLeNet"}
        | {"measured_on": "a K80", "network": "measured"},
        {
            preset: {"image_size": side, "batch_size": f"{batch} of both"}
            | {"layers": "smaller copies of both", "measured_on": "this machine"}
            | {"network": "predicted"}
            for preset, (side, batch, _) in SIZES.items()
        },
    ),
)
