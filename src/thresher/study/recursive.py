"""Filtering again after retraining: what joins `select` and `train`, which are strangers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import ThresherError
from thresher.paths import RunPaths, read_json
from thresher.select.prepare import with_features
from thresher.select.run_features import features_of_run
from thresher.select.samples import Samples
from thresher.training.config import TrainConfig


@dataclass(frozen=True)
class Retrainer:
    """Trains a run's network again on what is kept: the `retrain` of `RecursiveFilter`.

    Every round leaves `round-N.parquet` and the run `round-N` in `folder`. What is there already
    is not done again, so a killed command goes on.
    """

    run: Path
    """The run whose settings are used again."""
    pack: Pack
    samples: Samples
    folder: Path
    device: str = "auto"

    def __call__(self, round_: int, keep: np.ndarray) -> np.ndarray:
        from thresher.training.train import train

        out = self.folder / f"round-{round_}"
        settings = read_json(RunPaths(self.run).config, "run")["config"]
        settings |= {
            "data": str(self.pack.root),
            "selection": str(self._selection(round_, keep)),
            "out": str(out),
            "resume": True,
        }
        result = train(TrainConfig.from_dict(settings))
        if result.status not in ("finished", "target"):
            raise ThresherError(
                f"round {round_ + 1} ended as {result.status} in {out}",
                "look at it, then run the same command again",
            )
        features = features_of_run(out, self.pack, self.device)
        return with_features(self.samples, features, self.pack).need_features()

    def _selection(self, round_: int, keep: np.ndarray) -> Path:
        path = self.folder / f"round-{round_}.parquet"
        if path.exists():
            if not np.array_equal(Selection.load(path).keep, keep):
                raise ThresherError(
                    f"{path} keeps other samples than this command would",
                    f"remove {self.folder}, or choose another name",
                )
            return path
        n = len(keep)
        Selection(
            ids=self.samples.ids,
            labels=self.samples.labels,
            keep=keep,
            score=np.zeros(n, np.float32),
            reason=["" if kept else "an earlier round" for kept in keep.tolist()],
            fingerprint=self.pack.fingerprint,
            meta={"method": "recursive", "data": str(self.pack.root.resolve()), "round": round_},
        ).save(path)
        return path
