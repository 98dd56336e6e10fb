"""The steps of a study that come before training: features of a network, and filters on them.

A select step names its filter, where its features come from, and the filter's own settings, as
the filter's dataclass has them:

    [steps.network]
    do = "select"
    filter = "network"
    features = "features"     # an embed step, or a path
    drop = 0.0734

`like = "network"` makes a filter drop the same share as that selection: the random control.
"""

import dataclasses
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import ThresherError, nearest
from thresher.paths import RunPaths

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.select.filters.base import Filter
    from thresher.select.samples import Samples

EMBED_SETTINGS = {
    *("data", "run", "model", "weights", "crop", "image_size"),
    *("split", "dtype", "batch_size", "device"),
}
COMBINATIONS = ("union", "intersection", "vote")
SOURCES = {"data", "filter", "features", "run", "dynamics", "like", "selections"}
"""Settings of a select step that are not the filter's own."""


def check_embed(settings: dict[str, Any], where: str) -> None:
    """Refuse a misspelt setting of an embed step."""
    for key in settings:
        if key not in EMBED_SETTINGS | {"seed"}:
            raise ThresherError(f'there is no "{key}" in {where}', nearest(key, EMBED_SETTINGS))
    if not settings.get("run") and not (settings.get("model") and settings.get("weights")):
        raise ThresherError(
            f"{where} names no network", "give run = a train step, or model and weights"
        )


def embed(settings: dict[str, Any], out: Path) -> None:
    """Make the folder of features `out`; what an earlier attempt made is kept."""
    from thresher.data.pack import Pack
    from thresher.models import embed as embedding

    pack = Pack.open(settings["data"])
    if settings.get("run"):
        network = embedding.Network.from_run(settings["run"], pack)
    else:
        network = embedding.Network.from_weights(
            settings["model"],
            settings["weights"],
            pack,
            settings.get("crop") or None,
            settings.get("image_size") or None,
        )
    names = ("split", "dtype", "batch_size", "device")
    options = embedding.EmbedOptions(**{n: settings[n] for n in names if n in settings})
    embedding.embed(network, pack, out, options)


def check_select(settings: dict[str, Any], where: str) -> None:
    """Refuse a misspelt filter or setting before anything is run."""
    kind = _kind(settings, where)
    known = _own_settings(kind) | SOURCES
    for key in settings:
        if key not in known | {"seed"}:
            raise ThresherError(f'there is no "{key}" in {where}', nearest(key, known))


def select(settings: dict[str, Any], out: Path) -> None:
    """Make the selection `out`."""
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection
    from thresher.select.prepare import as_selection

    kind = _kind(settings, "the step")
    pack = Pack.open(settings["data"])
    samples, sources = _samples(settings, pack)
    own = {k: v for k, v in settings.items() if k in _own_settings(kind)}
    if settings.get("like"):
        model = Selection.load(settings["like"])
        own["drop"] = model.dropped / max(1, len(model.ids))
        sources["like"] = str(settings["like"])
    fitted = _make(kind, own, settings, pack, samples, out).fit(samples)
    # A sidecar alone is what a kill left behind; the table, written last, makes the selection.
    out.with_suffix(".json").unlink(missing_ok=True)
    as_selection(fitted, samples, pack, sources).save(out)


def _samples(settings: dict[str, Any], pack: "Pack") -> tuple["Samples", dict[str, Any]]:
    """The training samples, with what the step says is known of them."""
    from thresher.models.features import Features
    from thresher.select.prepare import training_samples, with_dynamics, with_features

    samples = training_samples(pack)
    sources: dict[str, Any] = {}
    if settings.get("features"):
        features = Features.open(settings["features"])
        samples = with_features(samples, features, pack)
        sources["features"] = str(settings["features"])
        sources |= {"network": str(features.meta["model"])} if "model" in features.meta else {}
    run = settings.get("dynamics") or settings.get("run")
    if run and RunPaths(Path(run)).dynamics.exists():
        samples = with_dynamics(samples, RunPaths(Path(run)).dynamics)
        sources["run"] = str(run)
    return samples, sources


def _make(
    kind: str,
    own: dict[str, Any],
    settings: dict[str, Any],
    pack: "Pack",
    samples: "Samples",
    out: Path,
) -> "Filter":
    if kind in COMBINATIONS:
        from thresher.data.selection import Selection
        from thresher.select.filters.combine import CombineFilter

        chosen = [Selection.load(path) for path in settings.get("selections", [])]
        return CombineFilter(chosen, rule=kind, **own)  # type: ignore[arg-type]
    if kind == "recursive":
        from thresher.select.filters.recursive import RecursiveFilter
        from thresher.study.recursive import Retrainer

        rounds = own.pop("rounds", 2)
        folder = out.parent / "rounds"
        retrain = Retrainer(Path(settings["run"]), pack, samples, folder, own.get("device", "auto"))
        return RecursiveFilter(retrain, _filters()["network"](**own), rounds)
    if kind == "network" and ("votes" in own or own.get("perplexities")):
        from thresher.select.stability import VotedNetworkFilter

        votes, perplexities = own.pop("votes", 1), tuple(own.pop("perplexities", ()))
        return VotedNetworkFilter(_filters()["network"](**own), votes, perplexities, [])
    return _filters()[kind](**own)


def _filters() -> dict[str, Any]:
    """Every filter with nothing but plain settings, by the name that people type."""
    from thresher.select.filters.el2n import EL2NFilter
    from thresher.select.filters.forgetting import ForgettingFilter
    from thresher.select.filters.grid import GridFilter
    from thresher.select.filters.label_errors import LabelErrorsFilter
    from thresher.select.filters.near_duplicates import NearDuplicatesFilter
    from thresher.select.filters.network import NetworkFilter
    from thresher.select.filters.random import RandomFilter

    return {
        "network": NetworkFilter,
        "random": RandomFilter,
        "grid": GridFilter,
        "el2n": EL2NFilter,
        "forgetting": ForgettingFilter,
        "near-duplicates": NearDuplicatesFilter,
        "label-errors": LabelErrorsFilter,
    }


def _kind(settings: dict[str, Any], where: str) -> str:
    kind = settings.get("filter")
    known = [*_filters(), "recursive", *COMBINATIONS]
    if kind not in known:
        raise ThresherError(f"{where} says filter = {kind!r}", nearest(str(kind), known))
    if kind == "recursive" and not settings.get("run"):
        raise ThresherError(f"{where} filters again and again, but has no run", "give run = a step")
    return str(kind)


def _own_settings(kind: str) -> set[str]:
    if kind in COMBINATIONS:
        return {"quorum"}
    if kind == "recursive":
        return _own_settings("network") - {"votes", "perplexities"} | {"rounds"}
    made = _filters()[kind]
    if dataclasses.is_dataclass(made):
        own = {f.name for f in dataclasses.fields(made)}
    else:
        own = set(inspect.signature(made).parameters)
    return own | ({"votes", "perplexities"} if kind == "network" else set())
