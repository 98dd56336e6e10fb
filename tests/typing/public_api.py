"""Uses every public name as a user would; `make lint` checks it with `mypy --strict`."""

from pathlib import Path

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader

from thresher import (
    Audit,
    AuditConfig,
    AUMFilter,
    CoverageFilter,
    EL2NFilter,
    Features,
    ForgettingFilter,
    GridFilter,
    IntersectionFilter,
    KNNFilter,
    LabelErrorsFilter,
    ListFilter,
    ModerateFilter,
    NearDuplicatesFilter,
    NetworkFilter,
    NoiseScale,
    OutliersFilter,
    Pack,
    PrototypesFilter,
    RandomFilter,
    RecursiveFilter,
    RunResult,
    Selection,
    Study,
    ThresherError,
    TrainConfig,
    UncertaintyFilter,
    UnionFilter,
    VoteFilter,
    __version__,
    analyse,
    audit,
    prune,
    report_result,
    train,
    write_pack,
    write_report,
)


def run(folder: str) -> float | None:
    """Train and return the test accuracy."""
    try:
        result: RunResult = train(TrainConfig(data="digits", out=folder))
    except ThresherError as error:
        print(error.what, error.fix)
        return None
    return result.accuracy


def read(selection: str) -> np.ndarray:
    """Return the images that a selection keeps."""
    pack: Pack = Pack.open("digits")
    return pack.images(Selection.load(selection).indices(pack))


def select(features: str) -> np.ndarray:
    """Return which samples the network filter keeps."""
    opened: Features = Features.open(features)
    assert opened.labels is not None
    fitted: NetworkFilter = NetworkFilter(drop=0.05).fit(opened.array, opened.labels)
    return fitted.keep_


def inspect(folder: str) -> dict[str, int]:
    """Audit a folder of images and return how many faults of each kind it has."""
    found: Audit = audit(folder, "AUDIT", AuditConfig(epochs=5))
    write_report(found)
    return {finding.kind: finding.count for finding in found.findings}


def judge(file: str, folder: str) -> Path:
    """Run a study and write its report."""
    study: Study = Study.load(file, folder)
    study.run()
    return write_report(analyse(study))


def own_loop(model: nn.Module, loader: DataLoader[tuple[Tensor, Tensor]]) -> float | None:
    """Prune and measure the noise scale in a training loop."""
    noise, pruned = NoiseScale(model), prune(loader, "random:0.3", epochs=2)
    for images, labels in pruned:
        losses: Tensor = nn.functional.cross_entropy(model(images), labels, reduction="none")
        loss: Tensor = pruned.loss(losses)
        noise.backward(losses + 0 * loss)
        report_result("run", loss=loss, batch=np.int64(len(labels)))
    return noise.value


def names() -> list[type]:
    """Name what the functions above do not use."""
    print(__version__, write_pack, Features.open)
    return [
        AUMFilter,
        CoverageFilter,
        EL2NFilter,
        ForgettingFilter,
        GridFilter,
        IntersectionFilter,
        KNNFilter,
        LabelErrorsFilter,
        ListFilter,
        ModerateFilter,
        NearDuplicatesFilter,
        NetworkFilter,
        OutliersFilter,
        PrototypesFilter,
        RandomFilter,
        RecursiveFilter,
        UncertaintyFilter,
        UnionFilter,
        VoteFilter,
    ]
