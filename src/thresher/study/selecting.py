"""The steps of a study before training: features of a network, and filters on them.

A select step holds its filter, the sources and the options of that filter; with `like`, the name of
another selection, it drops the same share as that one: the random control.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.errors import InvalidValueError, nearest
from thresher.options import describe, from_mapping

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection
    from thresher.models.embed_config import EmbedConfig
    from thresher.select.filters.base import Filter
    from thresher.select.inputs import FilterSources


def run_selection(
    filter: "Filter",
    pack: "Pack",
    sources: "FilterSources",
    out: Path,
    notes: Mapping[str, str] | None = None,
) -> "Selection":
    """Run any filter as `run_filter` does, and retrain the run in `sources` if it needs that.

    Retrained runs are kept in a folder called like `out`, with the suffix `.rounds`.
    """
    from thresher.select.run import run_filter
    from thresher.study.recursive import Retrainer

    retrain = None
    if "training" in filter.needs and sources.run is not None:
        device = getattr(filter, "device", "auto")
        retrain = Retrainer(sources.run, pack, out.with_suffix(".rounds"), device)
    return run_filter(filter, pack, sources, out, retrain, notes)


def embed(settings: dict[str, Any], out: Path) -> None:
    """Write features to the folder `out`, resuming an interrupted attempt."""
    from thresher.data.pack import Pack
    from thresher.models.embed import embed_pack

    embed_pack(check_embed(settings, "the step"), Pack.open(settings["data"]), out)


def check_embed(settings: dict[str, Any], where: str) -> "EmbedConfig":
    """Return the configuration of an embed step; raise if it is invalid."""
    from thresher.models.embed_config import EmbedConfig

    # Studies of version 0.1 wrote 0 and "" for defaults.
    own = {k: v for k, v in settings.items() if k not in ("data", "seed") and v not in (0, "")}
    config = from_mapping(EmbedConfig, own, where)
    config.check()
    return config


def select(settings: dict[str, Any], out: Path) -> None:
    """Write the selection `out`."""
    from thresher.data.pack import Pack
    from thresher.data.selection import Selection

    filter, sources = check_select(settings, "the step")
    notes = {}
    if settings.get("like"):
        model = Selection.load(settings["like"])
        filter.set_params(drop=model.dropped / max(1, len(model.ids)))
        notes["like"] = str(settings["like"])
    # The table is written last: a sidecar alone is left over from an interrupted attempt.
    out.with_suffix(".json").unlink(missing_ok=True)
    run_selection(filter, Pack.open(settings["data"]), sources, out, notes)


def check_select(settings: dict[str, Any], where: str) -> tuple["Filter", "FilterSources"]:
    """Return the filter and the sources that a select step names; raise if one is invalid."""
    from thresher.select.filters.registry import FILTERS, load_filter
    from thresher.select.inputs import FilterSources

    name = settings.get("filter")
    if not isinstance(name, str) or name not in FILTERS:
        raise InvalidValueError(
            f"{where} says filter = {name!r}", nearest(str(name), FILTERS.names())
        )
    kind = load_filter(name)
    options = {info.name for info in describe(kind)}
    inputs = {field.name for field in fields(FilterSources)}
    known = options | inputs | {"data", "filter", "dynamics", "like", "seed"}
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
    if "training" in kind.needs and sources.run is None:
        raise InvalidValueError(f"run is required by filter {name} in {where}", "", "run")
    return own, sources
