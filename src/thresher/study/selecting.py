"""The steps of a study before training: features of a network, and filters on them.

A select step holds its filter, the sources and the options of that filter. With `like`, the name of
another selection, it drops the same share as that one; the filter `random`, the control, drops as
many samples of each class.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.data.split import HoldOut
from thresher.errors import AlreadyExistsError, InvalidValueError, ThresherError, nearest
from thresher.models.embed_config import EmbedConfig
from thresher.options import describe, from_mapping
from thresher.paths import RunPaths, read_run_json
from thresher.select.filters.base import Filter
from thresher.select.filters.registry import FILTERS, load_filter
from thresher.select.inputs import FilterInputs, FilterSources
from thresher.select.run import open_features, run_filter, training_inputs, with_features
from thresher.study.settings import check_option
from thresher.study.tasks import Values
from thresher.training.config import TrainConfig

HOLD_OUT = ("validation", "split_seed")
"""Training options that decide which samples a run holds out. A select step takes them from the
trials, so that the filter chooses among the samples that the trials train on."""


def hold_out(settings: Mapping[str, Any]) -> HoldOut:
    """Return the samples that a trial or step with these settings holds out."""
    size, seed = settings.get("validation"), int(settings.get("split_seed") or 0)
    return HoldOut(size, 0 if size == 0 else seed)


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
    hold_out: HoldOut | None = None
    """Samples that are neither trained on nor filtered."""

    @cached_property
    def inputs(self) -> FilterInputs:
        """Ids and labels of the training samples."""
        return training_inputs(self.pack, self.hold_out)

    def __call__(self, round_: int, keep: np.ndarray) -> np.ndarray:
        """Train on the samples of `keep` (n,) bool; return features (n, d) of all samples."""
        from thresher.training.train import train

        out = self.folder / f"round-{round_}"
        settings = read_run_json(RunPaths(self.run).config, "run")["config"]
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
            class_names=tuple(self.pack.classes),
            meta={"method": "recursive", "data": str(self.pack.root.resolve()), "round": round_},
        ).save(path)
        return path


def run_selection(
    filter: Filter,
    pack: Pack,
    sources: FilterSources,
    out: Path,
    notes: Mapping[str, str] | None = None,
) -> Selection:
    """Run any filter as `run_filter` does; retrained runs are kept beside `out`, in `.rounds`."""
    retrain = None
    if "training" in filter.needs and sources.run is not None:
        _check_complete(sources.run, filter.name)
        device = getattr(filter, "device", "auto")
        rounds = out.with_suffix(".rounds")
        retrain = Retrainer(sources.run, pack, rounds, device, sources.hold_out)
    return run_filter(filter, pack, sources, out, retrain, notes)


def _check_complete(run: Path, name: str) -> None:
    """Refuse a run that was trained on a selection: its samples and labels would come back."""
    path = RunPaths(run).config
    used = read_run_json(path, "run")["config"].get("selection") if path.exists() else None
    if used:
        raise InvalidValueError(
            f"run must be trained on all samples, since filter {name} retrains it on samples of "
            f"its own choice, but {run} was trained on the selection {used}",
            "give another run",
            "run",
        )


def embed(settings: Values, out: Path) -> None:
    """Write features to the folder `out`, resuming an interrupted attempt."""
    from thresher.models.embed import embed_pack

    embed_pack(check_embed(settings, "the step"), Pack.open(settings["data"]), out)


def check_embed(settings: Values, where: str) -> EmbedConfig:
    """Return the configuration of an embed step; raise if it is invalid."""
    # Studies of version 0.1 wrote 0 and "" for defaults.
    own = {k: v for k, v in settings.items() if k not in ("data", "seed") and v not in (0, "")}
    config = from_mapping(EmbedConfig, own, where)
    config.check()
    return config


def select(settings: Values, out: Path) -> None:
    """Write the selection `out`."""
    filter, sources = check_select(settings, "the step")
    notes = {}
    if settings.get("like"):
        model = Selection.load(settings["like"])
        filter.set_params(drop=model.dropped / max(1, len(model.ids)))
        notes["like"] = str(settings["like"])
    notes |= {key: str(settings[key]) for key in HOLD_OUT if key in settings}
    # The table is written last: a sidecar alone is left over from an interrupted attempt.
    out.with_suffix(".json").unlink(missing_ok=True)
    run_selection(filter, Pack.open(settings["data"]), sources, out, notes)


def check_select(settings: Values, where: str) -> tuple[Filter, FilterSources]:
    """Return the filter and the sources that a select step names; raise if one is invalid."""
    name = settings.get("filter")
    if not isinstance(name, str) or name not in FILTERS:
        raise InvalidValueError(
            f"{where} says filter = {name!r}", nearest(str(name), FILTERS.names())
        )
    kind = load_filter(name)
    options = {info.name for info in describe(kind)}
    inputs = {field.name for field in fields(FilterSources)} - {"hold_out"}
    known = options | inputs | {"data", "filter", "dynamics", "seed", *HOLD_OUT}
    for key in settings:
        if key not in known:
            raise InvalidValueError(f'unknown option "{key}" in {where}', nearest(key, known))
    if settings.get("like") and "drop" not in options:
        raise InvalidValueError(f'{where} has `like`, but filter "{name}" has no `drop`')
    own = from_mapping(kind, {k: v for k, v in settings.items() if k in options}, where)
    paths = {k: v for k, v in settings.items() if k in inputs - options and v not in ("", [])}
    if settings.get("dynamics"):
        paths["run"] = settings["dynamics"]
    sources = from_mapping(FilterSources, paths, where)
    for key in HOLD_OUT:
        if key in settings:
            check_option(key, settings[key], where)
    sources.hold_out = hold_out(settings)
    if "training" in kind.needs and sources.run is None:
        raise InvalidValueError(f"run is required by filter {name} in {where}", "", "run")
    return own, sources
