"""Retraining for recursive filtering: what connects `select` and `training`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.errors import AlreadyExistsError, ThresherError
from thresher.paths import RunPaths, read_json
from thresher.select.inputs import FilterInputs
from thresher.select.run import open_features, training_inputs, with_features
from thresher.training.config import TrainConfig


@dataclass(frozen=True)
class Retrainer:
    """Trains a run's network again on the kept samples: the `retrain` of `RecursiveFilter`.

    Each round leaves `round-N.parquet` and the run `round-N` in `folder`. Rounds that are
    complete are reused, so an interrupted command resumes.
    """

    run: Path
    """The run whose settings are used."""
    pack: Pack
    folder: Path
    device: str = "auto"
    """Where features are computed."""

    @cached_property
    def inputs(self) -> FilterInputs:
        """Ids and labels of the training samples."""
        return training_inputs(self.pack)

    def __call__(self, round_: int, keep: np.ndarray) -> np.ndarray:
        """Train on the samples of `keep` (n,) bool; return features (n, d) of all samples."""
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
                "inspect it, then run the same command again",
            )
        features = open_features(out, self.pack, self.device)
        return with_features(self.inputs, features, self.pack).need_features()

    def _selection(self, round_: int, keep: np.ndarray) -> Path:
        """Return the selection of a round, written if it does not exist."""
        path = self.folder / f"round-{round_}.parquet"
        if path.exists():
            if not np.array_equal(Selection.load(path).keep, keep):
                raise AlreadyExistsError(
                    f"{path} keeps other samples than this command would",
                    f"remove {self.folder}, or choose another name",
                )
            return path
        Selection(
            ids=list(self.inputs.ids),
            labels=self.inputs.labels,
            keep=keep,
            score=np.zeros(len(keep), np.float32),
            reason=["" if kept else "an earlier round" for kept in keep.tolist()],
            fingerprint=self.pack.fingerprint,
            meta={"method": "recursive", "data": str(self.pack.root.resolve()), "round": round_},
        ).save(path)
        return path
