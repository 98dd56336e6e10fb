"""Known bad samples planted in a pack: which filter finds them, and at what price?

    python -m benchmarks.planted_noise --data digits --model tiny --epochs 15
    python -m benchmarks.planted_noise --data cifar10 --limit 10000 --model resnet20 --epochs 10

5 % of the training labels are flipped at random, 1 % of the images are replaced by noise and 1 %
by near-copies of another training image of the same class. A network is trained on the result, and
each filter chooses at its natural share, or, where it has none, at the share that is bad. Precision
is the share of what it drops that is bad; recall the share of the bad that it drops. With
`--pretrained`, filters also use the features of a network pretrained on ImageNet. Everything is
kept in `--work`: a second call goes on, and a table can be made where the network was not trained.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe, table
from thresher.data.pack import Pack
from thresher.data.sources.base import Block
from thresher.data.write import write_pack
from thresher.errors import ThresherError
from thresher.models.features import Features
from thresher.options import from_mapping
from thresher.paths import RunPaths, write_json, write_text
from thresher.select.filters.base import Filter
from thresher.select.filters.combine import UnionFilter
from thresher.select.filters.dynamics import EL2NFilter, ForgettingFilter
from thresher.select.filters.grid import GridFilter
from thresher.select.filters.label_errors import LabelErrorsFilter
from thresher.select.filters.near_duplicates import NearDuplicatesFilter
from thresher.select.filters.network import NetworkFilter
from thresher.select.filters.random import RandomFilter
from thresher.select.run import (
    as_selection,
    open_features,
    training_inputs,
    with_dynamics,
    with_features,
)

FLIPPED, NOISE, COPIES = 0.05, 0.01, 0.01
BAD = FLIPPED + NOISE + COPIES
KINDS = ("flipped", "noise", "copy")


@dataclass
class Planted:
    """A pack with known faults, as a source for the pack writer. `limit` takes that many training
    samples, evenly spread; 0 takes all."""

    base: str
    limit: int
    seed: int = 0

    def __post_init__(self) -> None:
        pack = Pack.open(self.base)
        self.name = f"{pack.name}-planted"
        self.classes = pack.classes
        self.image_shape = pack.image_shape

    def key(self) -> str:
        return f"planted noise in {self.base}, limit {self.limit}, seed {self.seed}"

    def chunks(self) -> list[str]:
        return ["train", "test"]

    def read(self, chunk: str) -> Iterator[Block]:
        pack = Pack.open(self.base)
        at = pack.indices(chunk)
        if self.limit and self.limit < len(at):
            at = at[np.linspace(0, len(at) - 1, self.limit).round().astype(int)]
        images, labels = pack.images(at), pack.labels[at].copy()
        ids = [str(id) for id in pack.ids.take(at)]
        if chunk == "train":
            images, labels = images.copy(), labels.copy()
            self._plant(images, labels)
        yield Block(ids, labels, [chunk] * len(ids), images)

    def _plant(self, images: np.ndarray, labels: np.ndarray) -> None:
        random = np.random.default_rng(self.seed)
        n = len(labels)
        for kind, rows in self.rows(n).items():
            if kind == "flipped":
                step = random.integers(1, len(self.classes), len(rows))
                labels[rows] = (labels[rows] + step) % len(self.classes)
            elif kind == "noise":
                images[rows] = random.integers(0, 256, images[rows].shape, dtype=np.uint8)
            else:
                clean = np.setdiff1d(np.arange(n), np.concatenate(list(self.rows(n).values())))
                source = random.choice(clean, len(rows), replace=False)
                wobble = random.integers(-2, 3, images[rows].shape)
                images[rows] = np.clip(images[source] + wobble, 0, 255).astype(np.uint8)
                labels[rows] = labels[source]

    def rows(self, n: int) -> dict[str, np.ndarray]:
        """Which training samples get which fault."""
        order = np.random.default_rng(self.seed + 1).permutation(n)
        ends = np.cumsum([round(share * n) for share in (FLIPPED, NOISE, COPIES)])
        return dict(zip(KINDS, np.split(order[: ends[-1]], ends[:-1]), strict=True))


def prepare(options: argparse.Namespace) -> tuple[Pack, Path]:
    """The planted pack and a network trained on it, both made once."""
    from thresher.training.config import TrainConfig
    from thresher.training.train import train

    work = options.work / f"{options.data}-{options.limit or 'all'}"
    source = Planted(options.data, options.limit)
    folder = work / "pack"
    pack = Pack.open(folder) if folder.exists() else write_pack(source, folder)
    run = work / f"{options.model}-{options.epochs}"
    if not RunPaths(run).result.exists():
        result = train(
            TrainConfig(
                data=str(folder),
                out=str(run),
                model=options.model,
                epochs=options.epochs,
                batch_size=options.batch_size,
                lr=options.lr,
                flip=options.data != "digits",
                record_dynamics=True,
                device=options.device,
                resume=RunPaths(run).config.exists(),
            )
        )
        if result.status != "finished":
            raise SystemExit(f"training ended as {result.status}; the same command goes on")
    return pack, run


def pretrained_features(pack: Pack, folder: Path, device: str) -> Features:
    """Features of a network that has not seen these images or labels, made once."""
    from thresher.models.embed import embed_pack
    from thresher.models.embed_config import EFFICIENTNET, EmbedConfig

    if folder.exists():
        return Features.open(folder)
    options = {"model": EFFICIENTNET, "device": device, "batch_size": 64}
    return embed_pack(from_mapping(EmbedConfig, options, "the benchmark"), pack, folder)


def filters(device: str) -> dict[str, Filter]:
    """At their natural share; those without one at the share that is bad."""
    return {
        "random": RandomFilter(drop=BAD),
        "network (knee)": NetworkFilter(device=device),
        "network (7 %)": NetworkFilter(drop=BAD, device=device),
        "network, PCA (7 %)": NetworkFilter(drop=BAD, reduce="pca", device=device),
        "grid": GridFilter(drop=BAD, device=device),
        "el2n": EL2NFilter(drop=BAD),
        "forgetting": ForgettingFilter(drop=BAD),
        "near-duplicates": NearDuplicatesFilter(),
        "label-errors (built in)": LabelErrorsFilter(engine="builtin"),
        "label-errors (cleanlab)": LabelErrorsFilter(engine="cleanlab"),
        "cleanlab, network's own": LabelErrorsFilter(probabilities="own", engine="cleanlab"),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    pack, run = prepare(options)
    features = open_features(run, pack, options.device)
    samples = with_features(training_inputs(pack), features, pack)
    samples = with_dynamics(samples, RunPaths(run).dynamics)
    samples = replace(samples, maps=run / "maps")
    planted = Planted(options.data, options.limit).rows(len(samples))
    bad = {kind: np.isin(np.arange(len(samples)), rows) for kind, rows in planted.items()}
    anything = np.any(list(bad.values()), axis=0)
    rows, selections = [], {}
    for name, one in filters(options.device).items():
        try:
            found = one.fit_inputs(samples)
        except ThresherError as error:
            print(f"{name}: {error}", flush=True)
            continue
        selections[name] = as_selection(found, samples, pack)
        rows.append(_row(name, found, bad, anything))
        print(json.dumps(rows[-1]), flush=True)
    if options.pretrained:
        features = pretrained_features(pack, run.parent / "pretrained", options.device)
        samples_there = with_features(training_inputs(pack), features, pack)
        for name, one in filters(options.device).items():
            if one.name in ("network", "near-duplicates") or "built in" in name:
                found = one.fit_inputs(samples_there)
                rows.append(_row(f"pretrained: {name}", found, bad, anything))
                print(json.dumps(rows[-1]), flush=True)
    errors = [name for name in selections if name.startswith("label-errors")][-1]
    pair = [selections["network (knee)"], selections[errors]]
    rows.append(
        _row(
            "network or label-errors",
            UnionFilter().fit_inputs(replace(samples, selections=pair)),
            bad,
            anything,
        )
    )
    result = json.loads(RunPaths(run).result.read_text())
    return {
        "machine": describe(),
        "data": options.data,
        "samples": len(samples),
        "network": f"{options.model}, {options.epochs:g} epochs",
        "test_accuracy": result["accuracy"],
        "rows": rows,
    }


def _row(
    name: str, found: Filter, bad: dict[str, np.ndarray], anything: np.ndarray
) -> dict[str, Any]:
    drop = ~found.keep_
    row: dict[str, Any] = {"filter": name, "dropped": float(drop.mean())}
    for kind, mask in {**bad, "any": anything}.items():
        row[f"precision_{kind}"] = float(mask[drop].mean()) if drop.any() else None
        row[f"recall_{kind}"] = float(drop[mask].mean())
    expected = bad["flipped"].mean()
    precision = row["precision_flipped"]
    row["times_random"] = None if precision is None else float(precision / expected)
    return row


def markdown(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    head = [f"## {report['data']}: {report['samples']:,} training samples", ""]
    head.append(f"Network: {report['network']}, test accuracy {report['test_accuracy']:.1%}.")
    head += ["", *(f"- {key}: {value}" for key, value in report["machine"].items()), ""]
    heads = (
        *("filter", "dropped", "precision, flipped", "× random", "recall, flipped"),
        *("recall, noise", "recall, copies", "precision, any fault", "recall, any fault"),
    )
    rows = []
    for row in report["rows"]:
        cells = [row["filter"], _percent(row["dropped"]), _percent(row["precision_flipped"])]
        times = row["times_random"]
        cells.append("–" if times is None else f"{times:.1f}")
        keys = ("recall_flipped", "recall_noise", "recall_copy", "precision_any", "recall_any")
        rows.append([*cells, *(_percent(row[key]) for key in keys)])
    return "\n".join([*head, *table(heads, rows), ""])


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--limit", type=int, default=0, help="training samples; 0 takes all")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--epochs", type=float, default=15)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, default=Path("build/planted"))
    parser.add_argument("--pretrained", action="store_true", help="also an EfficientNet-Lite0")
    parser.add_argument("--out", type=Path, help="also write OUT.json and OUT.md")
    options = parser.parse_args()
    report = measure(options)
    print(markdown(report))
    if options.out:
        write_json(options.out.with_suffix(".json"), report)
        write_text(options.out.with_suffix(".md"), markdown(report))


if __name__ == "__main__":
    main()
