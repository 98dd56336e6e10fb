"""Claims S1–S3 (Cunha et al. 2018): on small data, strong scaling reaches a given loss soonest.

k worker processes train the autoencoder of `volumes` under four rules until the validation loss
falls to a target that one worker reaches:

- strong: global batch and rate as for one worker; each worker takes 1/k of the batch;
- weak: each worker takes a whole batch, the rate stays;
- weak + linear: the rate is multiplied by k too;
- weak + linear + warm-up: it grows to that over the first epochs.
"""

import math
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from thresher.data.order import epoch_order, part
from thresher.errors import InvalidValueError
from thresher.options import from_mapping, to_mapping
from thresher.paths import read_json, write_json
from thresher.progress import track
from thresher.recipes.base import ClaimRow, Recipe, RecipeResult
from thresher.recipes.support import holds, studies
from thresher.recipes.support.differences import PaperSettings
from thresher.study.analysis import analyse
from thresher.study.comparisons import ArmComparison
from thresher.study.definition import ComparisonConfig
from thresher.study.results import Trial

if TYPE_CHECKING:
    import torch

    from thresher.distributed.group import Group

RULES = ("strong", "weak", "weak+linear", "weak+linear+warm-up")


@dataclass(frozen=True, kw_only=True)
class StrongScalingConfig:
    """One size of the experiment; the defaults are the smallest."""

    workers: tuple[int, ...] = (1, 2)
    seeds: int = 3
    samples: int = 256
    side: int = 12
    width: int = 4
    batch: int = 16
    rate: float = 3e-3
    target: float = 4.5e-3
    """Validation MSLE at which a run ends."""
    most_epochs: int = 60
    warmup_epochs: int = 5
    early_steps: int = 16
    """Steps after which the weights are compared with those of one worker."""
    threads: int = 1
    backend: Literal["gloo", "nccl"] = "gloo"
    """With gloo, each worker has a core of the CPU; with nccl, a GPU."""


@dataclass(frozen=True)
class ScalingRun:
    """One run to the target."""

    workers: int
    rule: str
    seed: int
    reached: bool
    seconds: float
    steps: int
    samples: int
    images_per_s: float
    loss: float | None
    moved: tuple[float, ...]
    """By how much some of the weights changed in the first steps; empty if not finite."""


SMOKE = StrongScalingConfig()
# Workers that share one GPU cannot be faster than one, so each worker is a core of the CPU. The
# loss is measured once per epoch, so the target is one that takes a dozen epochs. The rate is the
# best for one worker of 0.003, 0.006, 0.012 and 0.024, with other seeds: with a lower one, rules
# that multiply it would win for that reason. At smaller batches, a step is mostly communication.
GPU = replace(
    SMOKE, workers=(1, 2, 4), seeds=8, samples=1024, batch=64, width=8, rate=0.012, target=2e-3
)
PAPER = replace(
    GPU, workers=(1, 2, 4, 8, 16, 32), samples=4096, side=32, width=16, rate=3e-3, backend="nccl"
)
WEIGHTS = 64
"""Number of weights that are compared, evenly spaced among all."""
SAME_PATH = 1e-3
"""Largest difference of the weights, as a share of how far they moved, that rounding explains."""


def run_workers(config: StrongScalingConfig, workers: int, out: Path) -> list[ScalingRun]:
    """Run all rules and seeds on `workers` processes; finished runs are read from `out`."""
    from thresher.distributed.local_group import run_local
    from thresher.distributed.worker import call_in_group

    if workers > config.batch:
        raise InvalidValueError(
            f"workers must be at most the batch ({config.batch}), got {workers}", "", "workers"
        )
    file = out / f"workers-{workers}.json"
    stored = read_json(file) if file.exists() else {}
    if stored.get("task") != to_mapping(config):
        environment = {"OMP_NUM_THREADS": str(config.threads)}
        order = {"config": to_mapping(config), "file": str(file)}
        run = partial(run_local, workers, environment=environment, timeout_s=math.inf)
        call_in_group("thresher.recipes.cunha_strong:train_all", order, run)
        stored = read_json(file)
    return [ScalingRun(**run) for run in stored["runs"]]


def train_all(order: Any) -> None:
    """Train with every rule and seed: the worker function of `run_workers`."""
    import torch

    from thresher.distributed.group import join
    from thresher.recipes.support.volumes import volumes

    config = from_mapping(StrongScalingConfig, order["config"])
    torch.set_num_threads(config.threads)
    group = join("cuda" if config.backend == "nccl" else "cpu")
    device = group.device
    torch.backends.cudnn.allow_tf32 = False  # or paths would differ by more than float32 rounds
    train = torch.from_numpy(volumes(config.samples, config.side, seed=1)).to(device)
    held_out = torch.from_numpy(volumes(config.samples // 4, config.side, seed=2)).to(device)
    # On one worker all rules are the same.
    rules = RULES if group.world > 1 else RULES[:1]
    for rule in rules:  # the first steps of a process are slower, and are not timed
        train_to_target(replace(config, most_epochs=1), rule, 0, group, train, held_out)
    jobs = [(rule, seed) for seed in range(config.seeds) for rule in rules]
    shown = track(jobs, f"{group.world} workers") if group.first else jobs
    runs = [train_to_target(config, rule, seed, group, train, held_out) for rule, seed in shown]
    if group.first:
        # The key is "task" in files of earlier versions too.
        runs_json = [asdict(run) for run in runs]
        write_json(Path(order["file"]), {"task": to_mapping(config), "runs": runs_json})
    group.barrier()


def train_to_target(
    config: StrongScalingConfig,
    rule: str,
    seed: int,
    group: "Group",
    train: "torch.Tensor",
    held_out: "torch.Tensor",
) -> ScalingRun:
    """Train on volumes, (n, 1, side, side, side), until the held-out loss reaches the target."""
    import torch

    from thresher.recipes.support.volumes import autoencoder, msle

    batch = config.batch * (1 if rule == "strong" else group.world)
    peak = config.rate * (group.world if "linear" in rule else 1)
    model = autoencoder(config.side, config.width, seed).to(train.device)
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=peak)
    steps_per_epoch = math.ceil(len(train) / batch)
    warmup = config.warmup_epochs * steps_per_epoch if rule.endswith("warm-up") else 0
    weights = partial(torch.nn.utils.parameters_to_vector, parameters)
    first = weights().detach()
    moved: torch.Tensor | None = None
    seconds, steps, samples, loss = 0.0, 0, 0, math.inf
    for epoch in range(config.most_epochs):
        group.barrier()
        begin = time.perf_counter()
        order = epoch_order(len(train), seed, epoch)
        for begin_at in range(0, len(order), batch):
            whole = order[begin_at : begin_at + batch]
            own = torch.from_numpy(part(whole, group.rank, group.world)).to(train.device)
            if warmup:
                share = min(1.0, (steps + 1) / warmup)
                optimizer.param_groups[0]["lr"] = config.rate + (peak - config.rate) * share
            optimizer.zero_grad(set_to_none=False)
            (msle(model(train[own]), train[own]) / len(whole)).backward()
            flat = torch.cat([p.grad.reshape(-1) for p in parameters])  # type: ignore[union-attr]
            group.all_reduce_sum(flat)
            for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                p.grad = g.view_as(p)
            optimizer.step()
            steps += 1
            samples += len(whole)
            if steps == config.early_steps:
                moved = (weights() - first).detach()
        if train.device.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - begin
        # The evaluation is the same for every rule, so its time is not counted.
        with torch.no_grad():
            loss = float(msle(model(held_out), held_out)) / len(held_out)
        if not math.isfinite(loss) or loss <= config.target:
            break
    finite = math.isfinite(loss)
    kept: list[float] = []
    if moved is not None and bool(moved.isfinite().all()):
        kept = moved[:: max(1, len(moved) // WEIGHTS)].tolist()
    return ScalingRun(
        *(group.world, rule, seed),
        reached=finite and loss <= config.target,
        seconds=seconds,
        steps=steps,
        samples=samples,
        images_per_s=samples / seconds,
        loss=loss if finite else None,
        moved=tuple(kept),
    )


def reproduce(config: StrongScalingConfig, out: Path) -> RecipeResult:
    out.mkdir(parents=True, exist_ok=True)
    runs = [run for workers in config.workers for run in run_workers(config, workers, out)]
    return RecipeResult(
        rows(runs, config), {"task": to_mapping(config), "runs": [asdict(run) for run in runs]}
    )


def _of(runs: list[ScalingRun], workers: int, rule: str) -> list[ScalingRun]:
    return [run for run in runs if run.workers == workers and run.rule == rule]


def rows(runs: list[ScalingRun], config: StrongScalingConfig) -> list[ClaimRow]:
    """Return the rows of the three claims."""
    times, speeds = _compare(runs, "time_to_target"), _compare(runs, "images_per_s")
    several = [k for k in config.workers if k > 1]
    sooner = [_sooner(runs, times[k, rule]) for k in several for rule in RULES[1:]]
    k = max(several)
    tests = [(times[k, rule], speeds[k, rule]) for rule in RULES[1:]]
    return [*sooner, _same_path(runs, config), _yardstick(runs, k, tests)]


def _compare(
    runs: list[ScalingRun], metric: Literal["time_to_target", "images_per_s"]
) -> dict[tuple[int, str], ArmComparison]:
    """Compare strong scaling with each weak rule, by number of workers and rule.

    Runs that missed the loss are censored at their end.
    """
    trials = [
        Trial(
            cell={"workers": run.workers, "rule": run.rule},
            seed=run.seed,
            value=run.images_per_s
            if metric == "images_per_s"
            else run.seconds
            if run.reached
            else None,
            seconds=run.seconds,
            status="finished" if run.loss is not None else "diverged",
        )
        for run in runs
        if run.workers > 1
    ]
    pairs = tuple((RULES[0], rule) for rule in RULES[1:])
    workers = list(dict.fromkeys(trial.cell["workers"] for trial in trials))
    config = ComparisonConfig(
        compare="rule",
        pairs=pairs,
        metric=metric,
        primary=tuple(studies.in_each_cell(pairs, {"workers": workers})),
    )
    verdicts = analyse(trials, config).verdicts
    return {(c.cell["workers"], c.baseline): c for c in verdicts if c.cell}


def _sooner(runs: list[ScalingRun], comparison: ArmComparison) -> ClaimRow:
    """S1: strong scaling against one weak rule, by the time to the loss."""
    k, rule = comparison.cell["workers"], comparison.baseline
    strong, weak = ([r for r in _of(runs, k, name) if r.reached] for name in (RULES[0], rule))
    never = [name for name, arm in ((RULES[0], strong), (rule, weak)) if not arm]
    measured = f"{' and '.join(never)} never reached the loss"
    if not never:
        means = [fmean(run.seconds for run in arm) for arm in (strong, weak)]
        measured = f"strong {means[0]:.1f} s, {rule} {means[1]:.1f} s"
    missed = len(_of(runs, k, rule)) - len(weak)
    interval = studies.corrected(comparison, " s")
    if missed or len(strong) < len(_of(runs, k, RULES[0])):
        # The log-rank test decides, and the interval of the restricted means need not agree.
        interval = f"log-rank test, corrected p = {comparison.p_holm:.1g}"
    return ClaimRow(
        "S1",
        f"{k} workers: strong reaches the loss before {rule}",
        measured + (f" ({missed} missed it)" if missed and weak else ""),
        holds.if_better(comparison),
        interval,
        comparison.sentence,
    )


def _same_path(runs: list[ScalingRun], config: StrongScalingConfig) -> ClaimRow:
    """S2: after as many steps, the weights of k workers are those of one, to rounding."""
    strong, weak = (_apart(runs, rule) for rule in RULES[:2])
    measured = "nothing to compare: the weights are not finite"
    if strong:
        measured = f"weights differ by {max(strong):.1e} of how far they moved"
        if weak:
            measured += f", with weak scaling by {min(weak):.1e} or more"
    return ClaimRow(
        "S2",
        f"the same path as one worker; never more workers than the batch ({config.batch})",
        measured,
        holds.decided(bool(strong) and max(strong) < SAME_PATH, bool(strong)),
        note=f"after {config.early_steps} steps, float32; yes: below {SAME_PATH:g}",
    )


def _apart(runs: list[ScalingRun], rule: str) -> list[float]:
    """Return how far the weights of several workers are from those of one, by run.

    It is a share of how far those of one moved.
    """
    alone = {run.seed: np.array(run.moved) for run in _of(runs, 1, RULES[0]) if run.moved}
    return [
        float(np.linalg.norm(run.moved - alone[run.seed]) / np.linalg.norm(alone[run.seed]))
        for run in runs
        if run.workers > 1 and run.rule == rule and run.moved and run.seed in alone
    ]


def _yardstick(
    runs: list[ScalingRun], k: int, tests: list[tuple[ArmComparison, ArmComparison]]
) -> ClaimRow:
    """S3: a rule with a higher throughput reaches the loss later.

    `tests` compare strong scaling with each weak rule by the time to the loss and by throughput.
    """
    speed = {r: fmean(run.images_per_s for run in _of(runs, k, r)) for r in RULES}
    faster = [time.verdict for time, throughput in tests if throughput.verdict == "worse"]
    return ClaimRow(
        "S3",
        "time to a loss, not throughput, is the yardstick",
        f"{k} workers: " + ", ".join(f"{r} {s:,.0f} images/s" for r, s in speed.items()),
        holds.decided("better" in faster, set(faster) == {"worse"}),
        note="yes needs a rule with more images/s than strong scaling that reaches the loss later",
    )


PRESETS = {"smoke": SMOKE, "gpu": GPU, "paper": PAPER}
RECIPE = Recipe(
    "cunha-strong",
    "S1–S3",
    "strong scaling reaches a given loss sooner than weak, on small 3-D data",
    {name: partial(reproduce, config) for name, config in PRESETS.items()},
    paper=PaperSettings(
        {
            "workers": [1, 2, 4, 8, 16, 32],
            "worker": "a GPU",
            "data": "888 CT scans",
            "network": "a generative network",
            "optimizer": "Adadelta",
            "warmup_epochs": 5,
        },
        {
            name: {
                "workers": list(config.workers),
                "worker": "a GPU" if config.backend == "nccl" else "a core of the CPU",
                "data": "random ellipsoids",
                "network": "a small autoencoder",
                "optimizer": "Adam",
                "warmup_epochs": config.warmup_epochs,
                "seeds": config.seeds,
            }
            | {"batch": config.batch, "rate": config.rate, "side": config.side}
            | {"samples": config.samples, "width": config.width, "target": config.target}
            | {"most_epochs": config.most_epochs}
            for name, config in PRESETS.items()
        },
    ),
)
