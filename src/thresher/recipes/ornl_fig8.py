"""Claim O5: DDP against Horovod up to 1,536 V100 of Summit, as the model of both predicts it."""

from pathlib import Path
from typing import Any

from thresher.recipes.base import Recipe, RecipeResult, row

WORKERS = (1, 6, 24, 96, 384, 768, 1536)
BATCH = 64
CYCLES_MS = (1.0, 2.5, 5.0, 10.0)
FUSIONS_MB = (16, 64, 128)


def run(out: Path) -> RecipeResult:
    """Predict efficiency for both engines, with rings and with trees, and draw figure 8."""
    from thresher.models.registry import build
    from thresher.report.scaling_figures import efficiency_figure, timeline_figure
    from thresher.scaling.cluster import load
    from thresher.scaling.pipeline import MEGA, Horovod
    from thresher.scaling.predict import Setting, predict, step
    from thresher.scaling.skeleton import skeleton

    summit = load("summit")
    profile = skeleton(build("resnet50", 1000), "resnet50", (3, 224, 224), 1000, BATCH)
    # What Horovod did by default when the paper was written (0.18 to 0.20).
    queue = Horovod(cycle_s=5e-3, fusion_bytes=64 * MEGA)

    def efficiency(engine: Any, algorithm: str, workers: Any, horovod: Horovod) -> list[float]:
        setting = Setting(
            batch_size=BATCH, engine=engine, allreduce=algorithm, horovod=horovod, precision="fp32"
        )
        return [r.efficiency for r in predict(profile, summit, workers, setting)]

    curves = {
        f"{engine}, {algorithm}": efficiency(engine, algorithm, WORKERS, queue)
        for algorithm in ("ring", "tree")
        for engine in ("ddp", "horovod")
    }
    tuned = {
        (cycle, fusion): efficiency("horovod", "ring", (96,), Horovod(cycle / 1e3, fusion * MEGA))[
            0
        ]
        for cycle in CYCLES_MS
        for fusion in FUSIONS_MB
    }
    best = max(tuned, key=lambda key: tuned[key])
    figures = [out / "efficiency.png", out / "timeline.png"]
    efficiency_figure(
        {name: list(zip(WORKERS, values, strict=True)) for name, values in curves.items()},
        figures[0],
    )
    lines = {}
    for engine in ("ddp", "horovod"):
        setting = Setting(batch_size=BATCH, engine=engine, allreduce="ring", horovod=queue)
        lines[engine] = step(profile, summit, 96, setting).timeline
    timeline_figure(lines, figures[1])
    return RecipeResult(
        _rows(curves, tuned[(5.0, 64)], tuned[best], best),
        {
            "workers": WORKERS,
            "efficiency": curves,
            "tuned_at_96": {f"{c} ms, {f} MiB": v for (c, f), v in tuned.items()},
            "figures": [str(path) for path in figures],
        },
    )


def _rows(
    curves: dict[str, list[float]], default: float, best: float, setting: tuple[float, int]
) -> list[dict[str, Any]]:
    ddp, queue = curves["ddp, ring"], curves["horovod, ring"]
    ddp_tree, queue_tree = curves["ddp, tree"], curves["horovod, tree"]
    above = all(
        a >= b - 1e-9
        for one, other in ((ddp, queue), (ddp_tree, queue_tree))
        for a, b in zip(one, other, strict=True)
    )
    # 384 to 1,536 is where the paper sees Horovod bend ("near 1000 GPUs").
    falls = queue[-1] < 0.75 * queue[-3]
    falls_tree = queue_tree[-1] < 0.75 * queue_tree[-3]
    return [
        row(
            "O5",
            "DDP scales better than Horovod, to 1,536 V100",
            f"predicted at 1,536: DDP {_percent(ddp[-1])}, Horovod {_percent(queue[-1])} with "
            f"rings; {_percent(ddp_tree[-1])} and {_percent(queue_tree[-1])} with trees",
            "yes" if above else "no",
            note="a prediction of our model of both engines on Summit's data sheet, ResNet-50, 64 "
            "images a GPU; nothing was run on 1,536 GPUs",
        ),
        row(
            "O5",
            "Horovod's scaling deteriorates near 1,000 GPUs",
            f"predicted, rings: {_percent(queue[-3])} at 384, {_percent(queue[-2])} at 768, "
            f"{_percent(queue[-1])} at 1,536",
            "yes" if falls and falls_tree else "partly" if falls else "no",
            note="each cycle of the queue sends a message of its own, and a ring of 1,536 pays "
            "3,070 latencies for each; with NCCL's trees it falls only to "
            f"{_percent(queue_tree[-1])}",
        ),
        row(
            "O5",
            "tuning Horovod at 96 GPUs brings only marginal improvements",
            f"predicted: {_percent(default)} by default, {_percent(best)} at best "
            f"({setting[0]:g} ms, {setting[1]} MiB)",
            "yes" if best - default < 0.03 else "no",
        ),
    ]


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


RECIPE = Recipe(
    "ornl-fig8",
    "O5",
    "DDP against Horovod to 1,536 V100: static buckets against a dynamic queue",
    {"smoke": run, "gpu": run, "paper": run},
)
