"""The claims of the papers, and the stored results of the recipes that test them."""

import json
from dataclasses import dataclass
from importlib import resources

STORED = "stored.json"


@dataclass(frozen=True)
class Claim:
    """A claim of one of the papers."""

    id: str
    text: str
    guide: str = ""
    """The page that describes it, for what is a feature and not a measurement."""


CLAIMS = (
    Claim("O1", "Table I: the share of CIFAR-10 that is noise on each extractor's map"),
    Claim("O2", "For each learning rate there is a preferred batch size"),
    Claim("O3", "Figure 6: network-filtered data at small batches, weight decay tuned"),
    Claim("O4", "Figure 7: network-filtered data at large batches"),
    Claim("O5", "DDP scales better than Horovod up to 1,536 GPUs"),
    Claim("O6", "An interactive view of the map to oversee the filter", "page.md"),
    Claim("O7", "A pretrained extractor works as well as one trained from scratch"),
    Claim("O8", "Future work: recursive filtering, grid sampling, other networks"),
    Claim("M1", "Accuracy falls as the batch grows"),
    Claim("M2", "No warm-up is worst; larger batches want a longer one"),
    Claim("M3", "Linear scaling against none at the largest batch: no difference"),
    Claim("M4", "B = s·k and I = T/(s·k), the scaling ratio", "scaling.md"),
    Claim("M5", "Ring, hierarchical and hybrid all-reduce", "communication.md"),
    Claim("M6", "LEGW, LARS, polynomial decay, mixed precision, label smoothing", "training.md"),
    Claim("S1", "Strong scaling reaches a given loss sooner than weak scaling"),
    Claim("S2", "Strong scaling takes the same path as one worker"),
    Claim("S3", "The yardstick is the time to a given loss"),
    Claim("K1", "Communication bounds data-parallel SGD"),
    Claim("K2", "Even without communication the speed-up ends: small matrix products"),
    Claim("K3", "A batch of b ends at b workers"),
    Claim("K4", "Lower precision, sparse updates, compression, asynchrony", "communication.md"),
    Claim("K5", "Many small files read at random are slow; one binary cures it"),
    Claim("J1", "Few large containers, read ahead", "data.md"),
    Claim("J2", "Throughput of K workers against K times that of one"),
    Claim("J3", "Hyper-parameters are retuned for each batch on validation"),
    Claim("J4", "The records of ResNet-50 on ImageNet"),
)


@dataclass(frozen=True)
class StoredResult:
    """A recipe's result in `results/`."""

    preset: str
    command: str
    commit: str | None
    hardware: dict[str, str | int]
    versions: dict[str, str]
    rows: list[dict[str, object]]
    """Those of `recipe.json`."""


def stored_results() -> dict[str, StoredResult]:
    """Return the stored results by recipe, as `make claims` collected them from `results/`."""
    text = resources.files(__package__).joinpath(STORED).read_text(encoding="utf-8")
    return {name: StoredResult(**values) for name, values in json.loads(text).items()}
