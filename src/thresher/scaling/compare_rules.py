"""Strong against weak scaling on a real network (claim S1), for a network that talks and one that
computes (claim K1), with and without compression.

Every run is an ordinary `train` on the hosts of a test bed; the yardstick is the time to a given
loss (claim S3), counted in training seconds without evaluation.
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from thresher.distributed.names import Compress
from thresher.distributed.testbed import Testbed
from thresher.errors import ThresherError, nearest
from thresher.paths import read_json, write_json
from thresher.progress import bar
from thresher.train.config import TrainConfig

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
    seed: int = 0,
    timeout_s: float = 1200.0,
) -> list[Trial]:
    """Train with every rule on every number of hosts until `target_loss`, or `epochs` are over.

    `batch_size` and `lr` belong to one worker; weak scaling multiplies the batch, the linear rule
    the rate. On one host all rules are the same run, which is done once. Cost: a training run for
    each combination; the hosts share this machine's cores.
    """
    for rule in rules:
        if rule not in RULES:
            raise ThresherError(f'there is no scaling rule "{rule}"', nearest(rule, RULES))
    for squeeze in compress:
        if squeeze not in get_args(Compress):
            known = get_args(Compress)
            raise ThresherError(f'there is no compression "{squeeze}"', nearest(squeeze, known))
    trials: list[Trial] = []
    plans = list(itertools.product(models, compress, hosts, rules))
    with (
        tempfile.TemporaryDirectory(prefix="thresher-rules-") as folder,
        Testbed(max(hosts), link) as bed,
        bar("training on hosts", len(plans), "runs") as shown,
    ):
        for number, (model, squeeze, count, rule) in enumerate(plans):
            shown.note(f"{model}, {rule}, {squeeze}, {count} hosts")
            if count == 1 and (rule != rules[0] or squeeze != compress[0]):
                shown.advance()
                continue
            options: dict[str, Any] = {"compress": squeeze, **RULES[rule]}
            config = TrainConfig(
                data=data,
                out=str(Path(folder) / str(number)),
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
                **options,
            )
            result = _train(bed, config, count, Path(folder) / f"order-{number}", timeout_s)
            trials.append(
                _trial(model, rule if count > 1 else "one host", squeeze, count, link, result)
            )
            shown.advance()
    return trials


def _train(
    bed: Testbed, config: TrainConfig, hosts: int, folder: Path, timeout_s: float
) -> dict[str, Any]:
    folder.mkdir()
    order, answer = folder / "config.json", folder / "answer.json"
    write_json(order, config.to_dict())
    argv = [sys.executable, "-m", "thresher.train.worker", str(order), str(answer)]
    ranks = bed.run(argv, hosts=hosts, timeout_s=timeout_s)
    if not answer.exists():
        tail = ranks[0].stderr.strip().splitlines()[-1:]
        raise ThresherError(f"a run on the test bed gave no answer: {' '.join(tail)}")
    said = read_json(answer, "worker's answer")
    if "error" in said:
        raise ThresherError(*said["error"])
    result: dict[str, Any] = said["result"]
    return result


def _trial(
    model: str, rule: str, compress: str, hosts: int, link: str, result: dict[str, Any]
) -> Trial:
    reached = result["time_to_target"]
    return Trial(
        model=model,
        rule=rule,
        compress=compress,
        hosts=hosts,
        link=link,
        status=result["status"],
        seconds_to_loss=None if reached is None else reached["seconds"],
        steps=result["steps"],
        samples=result["samples"],
        step_s=result["seconds"] / max(1, result["steps"]),
        images_per_s=result["samples"] / result["seconds"] if result["seconds"] else 0.0,
        loss=result["loss"],
        accuracy=result["accuracy"],
    )


def verdicts(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Which rule reached the loss first, for each network, compression and number of hosts."""
    found = []
    keys = dict.fromkeys((t.model, t.compress, t.hosts) for t in trials if t.hosts > 1)
    for model, compress, hosts in keys:
        same = [t for t in trials if (t.model, t.compress, t.hosts) == (model, compress, hosts)]
        reached = {t.rule: t.seconds_to_loss for t in same if t.seconds_to_loss is not None}
        alone = [t.seconds_to_loss for t in trials if t.model == model and t.hosts == 1]
        first = min(reached, key=lambda rule: reached[rule]) if reached else None
        one = alone[0] if alone else None
        found.append(
            {
                "model": model,
                "compress": compress,
                "hosts": hosts,
                "first": first,
                "seconds": reached[first] if first else None,
                "speed_up": one / reached[first] if one and first else None,
                "strong_first": first == "strong" if first else None,
            }
        )
    return found


def as_rows(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    return [asdict(trial) for trial in trials]
