"""Wrong labels that `thresher audit` lists in few photos, with its own or a pretrained network.

    python -m benchmarks.audit_network

200 images of each class of CIFAR-10, a tenth of them with a wrong label.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.machine import markdown
from thresher import AuditConfig, Pack, Selection, audit, write_pack
from thresher.data.sources.registry import open_source

PER_CLASS, WRONG = 200, 0.1


def plant(folder: Path) -> tuple[Pack, np.ndarray]:
    """Return a pack with wrong labels, and the true ones."""
    pack, random = Pack.open("cifar10"), np.random.default_rng(0)
    train = pack.indices("train")
    by_class = [train[pack.labels[train] == label] for label in range(10)]
    rows = np.sort(np.concatenate([random.choice(r, PER_CLASS, False) for r in by_class]))
    true = pack.labels[rows]
    labels, wrong = true.copy(), random.choice(len(rows), round(WRONG * len(rows)), False)
    labels[wrong] = (labels[wrong] + random.integers(1, 10, len(wrong))) % 10
    np.savez(folder / "few.npz", images=pack.images(rows), labels=labels)
    return write_pack(open_source(str(folder / "few.npz")), folder / "pack"), true


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/audit-network"), help="new folder")
    work = parser.parse_args().work
    work.mkdir(parents=True)
    pack, true = plant(work)
    print(markdown())
    for model in (None, "efficientnet-lite0"):
        found = audit(pack, work / (model or "own"), AuditConfig(model=model))
        selection = Selection.load(found.selection)
        assert selection.suggested is not None
        truth = true[pack.positions(selection.ids)]
        listed, wrong = selection.suggested >= 0, selection.labels != truth
        right = (selection.suggested == truth) & wrong
        print(
            f"{found.network}: lists {listed.sum()} images, {(listed & wrong).sum()} of the "
            f"{wrong.sum()} with a wrong label, {right.sum()} with the right suggestion; "
            f"drops {selection.dropped}"
        )


if __name__ == "__main__":
    main()
