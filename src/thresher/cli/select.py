"""`thresher select …`: choose which training images to keep."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from thresher.cli.commands import Outcome
from thresher.cli.packs import ensure_pack
from thresher.cli.select_flags import (
    Combine,
    Common,
    Dynamic,
    Featured,
    Grid,
    LabelErrors,
    Mapped,
    NearDuplicates,
    Network,
    Random,
    Recursive,
    Vote,
)
from thresher.errors import ThresherError
from thresher.paths import RunPaths, SelectionPaths
from thresher.progress import say

if TYPE_CHECKING:
    from thresher.data.pack import Pack
    from thresher.select.filters.base import Filter
    from thresher.select.filters.network import NetworkFilter
    from thresher.select.samples import Samples


def network(config: Network) -> Outcome:
    """Drop what DBSCAN calls noise within its class, on a map of the network's own features.

    Features of --run (or --features) go through PCA and t-SNE to a map of all training samples;
    each class is clustered on its own. A fixed radius means nothing on such a map, so say what
    share to --drop, or leave it to the knee of the k-distance curve.
    """

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.stability import VotedNetworkFilter

        base = _network_filter(config, config.eps, config.drop, config.min_samples)
        base.reduce, base.cluster = config.reduce, config.cluster
        base.min_cluster_size = config.min_cluster_size
        if config.votes == 1 and not config.perplexities and not config.also:
            return base
        others = [_add_features(samples, pack, path)[0].need_features() for path in config.also]
        return VotedNetworkFilter(base, config.votes, config.perplexities, others)

    return _featured(config, make)


def recursive(config: Recursive) -> Outcome:
    """Filter, retrain the run's network on what is kept, and filter again.

    Each retraining is a run of its own beside the selection (S.rounds/), with the settings of
    --run; an interrupted command goes on from the rounds that are there.
    """
    if config.run is None:
        raise ThresherError("recursive filtering retrains a run", "give one with `--run`")
    run = config.run

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.recursive import RecursiveFilter
        from thresher.study.recursive import Retrainer

        folder = config.out.with_suffix(".rounds")
        base = _network_filter(config, config.eps, config.drop, config.min_samples)
        retrain = Retrainer(run, pack, samples, folder, config.device)
        return RecursiveFilter(retrain, base, config.rounds)

    return _featured(config, make)


def random(config: Random) -> Outcome:
    """Drop a share at random: the control that every other filter is measured against."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.random import RandomFilter

        return RandomFilter(drop=config.drop, per_class=config.per_class, seed=config.seed)

    return _plain(config, make)


def grid(config: Grid) -> Outcome:
    """Thin the crowded cells of a grid over each class's part of the map, keep the rare ones."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.grid import GridFilter

        return GridFilter(
            config.drop,
            config.cells,
            config.components,
            config.perplexity,
            config.seed,
            config.device,
        )

    return _featured(config, make)


def el2n(config: Dynamic) -> Outcome:
    """Drop by EL2N, the norm of the error early in training, as a run recorded it."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.el2n import EL2NFilter

        return EL2NFilter(drop=config.drop, per_class=config.per_class, side=config.side)

    return _from_dynamics(config, make)


def forgetting(config: Dynamic) -> Outcome:
    """Drop by forgetting events, how often a sample was unlearned, as a run recorded it."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.forgetting import ForgettingFilter

        return ForgettingFilter(drop=config.drop, per_class=config.per_class, side=config.side)

    return _from_dynamics(config, make)


def near_duplicates(config: NearDuplicates) -> Outcome:
    """Drop near copies: of samples of one class that are alike, the first one stays."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.near_duplicates import NearDuplicatesFilter

        return NearDuplicatesFilter(config.similarity, config.centre)

    return _featured(config, make)


def label_errors(config: LabelErrors) -> Outcome:
    """Drop what confident learning calls mislabelled (by cleanlab, where it is installed)."""

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.label_errors import LabelErrorsFilter

        return LabelErrorsFilter(
            config.probabilities, config.engine, folds=config.folds, seed=config.seed
        )

    return _featured(config, make)


def union(config: Combine) -> Outcome:
    """Drop what any of several selections drops."""
    return _combined(config, "union")


def intersection(config: Combine) -> Outcome:
    """Drop only what all of several selections drop."""
    return _combined(config, "intersection")


def vote(config: Vote) -> Outcome:
    """Drop what most of several selections drop."""
    return _combined(config, "vote", config.quorum)


Make = Callable[["Pack", "Samples"], "Filter"]


def command(name: str) -> tuple[type, Callable[[Any], Outcome]]:
    """Return the configuration class and the function of `thresher select NAME`."""
    function = globals()[name.replace("-", "_")]
    return get_type_hints(function)["config"], function


def _plain(config: Common, make: Make) -> Outcome:
    from thresher.data.pack import Pack
    from thresher.select.prepare import training_samples

    _check_names(config)
    ensure_pack(config.data)
    pack = Pack.open(config.data)
    samples = training_samples(pack)
    return _finish(config, make(pack, samples), pack, samples, {})


def _featured(config: Featured, make: Make) -> Outcome:
    from thresher.data.pack import Pack
    from thresher.select.prepare import training_samples

    _check_names(config)
    if (config.run is None) == (config.features is None):
        raise ThresherError("features are needed", "give either `--run` or `--features`")
    if config.run is not None and not RunPaths(config.run).config.exists():
        raise ThresherError(f"there is no run at {config.run}", "check the path")
    ensure_pack(config.data)
    pack = Pack.open(config.data)
    where = config.run or config.features
    assert where is not None
    device = getattr(config, "device", "auto")
    samples, sources = _add_features(training_samples(pack), pack, where, device)
    return _finish(config, make(pack, samples), pack, samples, sources)


def _from_dynamics(config: Dynamic, make: Make) -> Outcome:
    from thresher.data.pack import Pack
    from thresher.select.prepare import training_samples, with_dynamics

    _check_names(config)
    if not RunPaths(config.run).config.exists():
        raise ThresherError(f"there is no run at {config.run}", "check the path")
    ensure_pack(config.data)
    pack = Pack.open(config.data)
    samples = with_dynamics(training_samples(pack), RunPaths(config.run).dynamics)
    return _finish(config, make(pack, samples), pack, samples, {"run": str(config.run)})


def _combined(
    config: Combine, rule: Literal["union", "intersection", "vote"], quorum: float = 0.5
) -> Outcome:
    from thresher.data.selection import Selection

    chosen = [Selection.load(path) for path in config.selections]

    def make(pack: "Pack", samples: "Samples") -> "Filter":
        from thresher.select.filters.combine import CombineFilter

        for one in chosen:
            one.indices(pack)
        names = [path.stem for path in config.selections]
        return CombineFilter(chosen, rule, quorum, names)

    return _plain(config, make)


def _add_features(
    samples: "Samples", pack: "Pack", where: Path, device: str = "auto"
) -> tuple["Samples", dict[str, Any]]:
    """The samples with the features of a run (made where they are missing) or of a file."""
    from thresher.models.features import Features
    from thresher.select.prepare import with_features
    from thresher.select.run_features import features_folder, features_of_run

    if RunPaths(where).config.exists():
        features = features_of_run(where, pack, device)
        sources = {"run": str(where), "features": str(features_folder(where, pack).resolve())}
    else:
        features = Features.open(where)
        sources = {"features": str(where.resolve())}
    if features.meta.get("model"):
        sources["network"] = str(features.meta["model"])
    return with_features(samples, features, pack), sources


def _network_filter(
    config: Mapped, eps: str | None, drop: float | None, min_samples: int
) -> "NetworkFilter":
    from thresher.select.filters.network import NetworkFilter

    radius: float | Literal["auto"] | None = None
    if eps == "auto":
        radius = "auto"
    elif eps is not None:
        try:
            radius = float(eps)
        except ValueError:
            raise ThresherError(
                f'--eps is "{eps}"', "give a positive number or the word auto"
            ) from None
    return NetworkFilter(
        eps=radius,
        drop=drop,
        min_samples=min_samples,
        components=config.components,
        perplexity=config.perplexity,
        seed=config.seed,
        device=config.device,
        maps=_maps(config),
    )


def _maps(config: Featured) -> Path | None:
    """Where maps are kept: beside the features, if those are a run's or a folder of ours."""
    where = config.run or config.features
    return where / "maps" if where is not None and where.is_dir() else None


def _check_names(config: Common) -> None:
    """Refuse a taken or misspelt name now, not after minutes of work."""
    if config.out.suffix != ".parquet":
        raise ThresherError(f"{config.out} does not end in .parquet", "name it S.parquet")
    paths = SelectionPaths(config.out)
    for taken in (paths.table, paths.sidecar, paths.overrides, *config.export):
        if taken.exists():
            raise ThresherError(f"{taken} exists already", "choose another name or remove it")
    for path in config.export:
        if path.suffix not in (".txt", ".npy"):
            raise ThresherError(f"{path} is no export", "name it .txt (ids) or .npy (positions)")


def _finish(
    config: Common, chosen: "Filter", pack: "Pack", samples: "Samples", sources: dict[str, Any]
) -> Outcome:
    from thresher.select.prepare import as_selection

    fitted = chosen.fit(samples)
    for warning in fitted.warnings_:
        say(f"warning: {warning}")
    selection = as_selection(fitted, samples, pack, sources).save(config.out)
    for path in config.export:
        selection.export(path, pack)
    meta = selection.meta
    data = {
        "method": meta["method"],
        "kept": meta["kept"],
        "dropped": meta["dropped"],
        "dropped_share": meta["dropped_share"],
        "eps": meta.get("eps"),
        "min_samples": meta.get("min_samples"),
        "per_class": meta["per_class"],
        "kl": meta.get("kl"),
        "stability": meta.get("stability"),
        "warnings": meta["warnings"],
        "seconds": meta["seconds"],
        "out": str(config.out),
    }
    return Outcome(data, _table(data))


def _table(data: dict[str, Any]) -> Any:
    """Class by class, then the whole."""
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    for name in ("kept", "dropped", "share"):
        table.add_column(name, justify="right")
    for name, row in data["per_class"].items():
        table.add_row(
            name, f"{row['kept']:,}", f"{row['dropped']:,}", f"{row['dropped_share']:.2%}"
        )
    table.add_row(
        "all", f"{data['kept']:,}", f"{data['dropped']:,}", f"{data['dropped_share']:.2%}"
    )
    lines = []
    if isinstance(data["eps"], float):
        lines.append(f"eps {data['eps']:.4g}, min_samples {data['min_samples']}")
    elif isinstance(data["eps"], dict):
        low, high = min(data["eps"].values()), max(data["eps"].values())
        lines.append(f"eps {low:.4g} … {high:.4g} by class, min_samples {data['min_samples']}")
    if data["kl"] is not None:
        lines.append(f"t-SNE's KL divergence {data['kl']:.4f}")
    if data["stability"]:
        s = data["stability"]
        lines.append(
            f"{s['votes']} votes agree with Jaccard {s['jaccard']:.3f} "
            f"(random choices: {s['expected_at_random']:.3f})"
        )
    lines.append(f"{data['out']} in {data['seconds']['total']:,.1f} s")
    return Group(table, *lines)
