"""Strong against weak scaling on a real network (claim S1), for a network that talks and one that
computes (claim K1), with and without compression.

Every run is an ordinary `train` on the hosts of a test bed, each held to the same share of a core;
the yardstick is the time to a given loss (claim S3), counted in training seconds without
evaluation.
"""

import itertools
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from thresher.distributed.names import Compress
from thresher.distributed.worker import read_answer
from thresher.errors import ThresherError, nearest
from thresher.lab.shares import enter_share, fair_share, host_shares
from thresher.lab.testbed import Testbed
from thresher.paths import write_json
from thresher.progress import bar, say
from thresher.training.config import TrainConfig
from thresher.training.folder import finished
from thresher.training.result import RunResult

RULES: dict[str, dict[str, Any]] = {
    "strong": {"scaling": "strong", "lr_rule": "none"},
    "weak": {"scaling": "weak", "lr_rule": "none"},
    "weak+linear": {"scaling": "weak", "lr_rule": "linear"},
    "weak+linear+warmup": {"scaling": "weak", "lr_rule": "linear", "warmup_epochs": 2.0},
}
MODELS = ("alexnet-small", "googlenet-small")


@dataclass(frozen=True)
class Trial:
    """One run; `seconds_to_loss` is None where the loss was not reached."""

    model: str
    rule: str
    compress: str
    hosts: int
    seed: int
    link: str
    status: str
    seconds_to_loss: float | None
    steps: int
    samples: int
    step_s: float
    images_per_s: float
    loss: float | None
    accuracy: float | None


def compare_rules(
    data: str,
    hosts: Sequence[int],
    link: str,
    models: Sequence[str] = MODELS,
    rules: Sequence[str] = tuple(RULES),
    compress: Sequence[str] = ("none", "int8"),
    batch_size: int = 64,
    lr: float = 0.02,
    target_loss: float = 0.6,
    epochs: float = 20.0,
    seeds: int = 1,
    folder: Path | None = None,
    timeout_s: float = 1200.0,
) -> list[Trial]:
    """Train with every rule on every number of hosts until `target_loss`, or `epochs` are over.

    `batch_size` and `lr` belong to one worker; weak scaling multiplies the batch, the linear rule
    the rate. On one host all rules are the same run, which is done once for each seed. Cost: a
    training run for each combination. The runs are kept in `folder`: the same call made again after
    a kill takes the finished ones from there and goes on.
    """
    for rule in rules:
        if rule not in RULES:
            raise ThresherError(f'there is no scaling rule "{rule}"', nearest(rule, RULES))
    for squeeze in compress:
        if squeeze not in get_args(Compress):
            known = get_args(Compress)
            raise ThresherError(f'there is no compression "{squeeze}"', nearest(squeeze, known))
    # Seed by seed, so that a comparison that is cut off is whole for some of them.
    plans = [
        (seed, model, squeeze, count, rule)
        for seed, model, squeeze, count, rule in itertools.product(
            range(seeds), models, compress, hosts, rules
        )
        if count > 1 or (rule == rules[0] and squeeze == compress[0])
    ]
    with ExitStack() as stack:
        if folder is None:
            made = tempfile.TemporaryDirectory(prefix="thresher-rules-")
            folder = Path(stack.enter_context(made))
        bed = stack.enter_context(Testbed(max(hosts), link))
        groups = stack.enter_context(host_shares(bed.count, fair_share(bed.count)))
        if groups is None:
            say("no control groups here: the hosts contend for the cores, more hosts are slower")
        shown = stack.enter_context(bar("training on hosts", len(plans), "runs"))
        trials = []
        for seed, model, squeeze, count, rule in plans:
            named = rule if count > 1 else "one host"
            shown.note(f"{model}, {named}, {squeeze}, {count} hosts, seed {seed}")
            config = TrainConfig(
                data=data,
                out=str(folder / f"{model}-{named}-{squeeze}-{count}x{link}-{seed}"),
                model=model,
                batch_size=batch_size,
                base_batch=batch_size,
                lr=lr,
                schedule="constant",
                epochs=epochs,
                target_loss=target_loss,
                seed=seed,
                device="cpu",
                flip=False,
                compress=squeeze,  # type: ignore[arg-type]
                resume=True,
                **RULES[rule],
            )
            result = finished(config)
            if result is None:
                result = _train(bed, config, count, groups, timeout_s)
            trials.append(_trial(model, named, squeeze, count, seed, link, result))
            shown.advance()
    return trials


def _train(
    bed: Testbed, config: TrainConfig, hosts: int, groups: list[str] | None, timeout_s: float
) -> RunResult:
    with tempfile.TemporaryDirectory(prefix="thresher-rules-") as name:
        order, answer = Path(name) / "config.json", Path(name) / "answer.json"
        write_json(order, {"groups": groups, "config": config.to_dict()})
        worker = ["thresher.distributed.worker", "thresher.lab.rules:train_on_host"]
        argv = [sys.executable, "-m", *worker, str(order), str(answer)]
        ranks = bed.run(argv, hosts=hosts, timeout_s=timeout_s)
        if not answer.exists():
            tail = ranks[0].stderr.strip().splitlines()[-1:]
            raise ThresherError(f"a run on the test bed gave no answer: {' '.join(tail)}")
        return RunResult.from_dict(read_answer(answer))


def _trial(
    model: str, rule: str, compress: str, hosts: int, seed: int, link: str, result: RunResult
) -> Trial:
    reached = result.time_to_target
    return Trial(
        model=model,
        rule=rule,
        compress=compress,
        hosts=hosts,
        seed=seed,
        link=link,
        status=result.status,
        seconds_to_loss=None if reached is None else reached.seconds,
        steps=result.steps,
        samples=result.samples,
        step_s=result.seconds / max(1, result.steps),
        images_per_s=result.samples / result.seconds if result.seconds else 0.0,
        loss=result.loss,
        accuracy=result.accuracy,
    )


def verdicts(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Which rule reached the loss first, for each network, compression and number of hosts.

    By the mean over seeds, among the rules that got there with every seed; `strong_first_in` counts
    the seeds in which strong scaling was the first. `rules` has the mean, least and most of each.
    """
    found = []
    keys = dict.fromkeys((t.model, t.compress, t.hosts) for t in trials if t.hosts > 1)
    for model, compress, hosts in keys:
        same = [t for t in trials if (t.model, t.compress, t.hosts) == (model, compress, hosts)]
        spans = {cell[0].rule: seconds(cell) for cell in cells(same)}
        reached = {rule: span["mean"] for rule, span in spans.items() if span is not None}
        alone = seconds(t for t in trials if t.model == model and t.hosts == 1)
        first = _fastest(reached)
        seeds = sorted({t.seed for t in same})
        found.append(
            {
                "model": model,
                "compress": compress,
                "hosts": hosts,
                "seeds": len(seeds),
                "first": first,
                "seconds": reached[first] if first else None,
                "speed_up": alone["mean"] / reached[first] if alone and first else None,
                "strong_first": first == "strong" if first else None,
                "strong_first_in": sum(_first(same, seed) == "strong" for seed in seeds),
                "rules": spans,
            }
        )
    return found


def cells(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The runs that differ in nothing but their seed, together."""
    together: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        key = (trial.model, trial.rule, trial.compress, trial.hosts)
        together.setdefault(key, []).append(trial)
    return list(together.values())


def seconds(trials: Iterable[Trial]) -> dict[str, float] | None:
    """Mean, least and most seconds to the loss; None where a run did not get there."""
    found = [trial.seconds_to_loss for trial in trials]
    times = [time for time in found if time is not None]
    if not times or len(times) < len(found):
        return None
    return {"mean": mean(times), "low": min(times), "high": max(times)}


def _first(trials: Sequence[Trial], seed: int) -> str | None:
    """The rule that reached the loss first with `seed`."""
    times = {t.rule: t.seconds_to_loss for t in trials if t.seed == seed}
    return _fastest({rule: time for rule, time in times.items() if time is not None})


def _fastest(reached: dict[str, float]) -> str | None:
    return min(reached, key=lambda rule: reached[rule]) if reached else None


def as_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [asdict(trial) for trial in trials]


def train_on_host(order: dict[str, Any]) -> dict[str, Any]:
    """Train as one worker, limited to its host's share of a core."""
    # Import before the share is entered: at a part of a core the imports take long.
    from thresher.training.train import train

    if order["groups"]:
        enter_share(order["groups"][int(os.environ["RANK"])])
    return train(TrainConfig.from_dict(order["config"])).to_dict()
