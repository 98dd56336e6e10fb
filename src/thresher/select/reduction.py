"""Reduce features to the points that are clustered: PCA, then t-SNE or UMAP.

On a CPU, t-SNE is openTSNE's optimiser on exact neighbours; on a CUDA device it is
`thresher.select.tsne`. The same seed gives the same bytes on the same machine. Importing this
module does not load torch, which the options of filters do not need.
"""

import hashlib
import json
import logging
import time
import zipfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from thresher.environment import choose_device, core_count, likely_device, versions
from thresher.errors import InvalidValueError, MissingDependencyError, ThresherError, nearest
from thresher.options import option
from thresher.paths import atomic_file
from thresher.progress import bar
from thresher.select.cuda_source import TSNE, start_compiling
from thresher.startup import importing, start_gpu

if TYPE_CHECKING:
    import torch

Method = Literal["tsne", "pca", "none", "umap"]
Start = Literal["pca", "random"]
TsneDefaults = Literal["opentsne", "sklearn-2020"]
EXAGGERATED_ITERATIONS = 250
NOTE_EVERY = 50
START_STD = 1e-4
JITTER = 0.01
RESIDENT_BYTES = 8 << 30
BLOCK_ROWS = 1 << 14
PACKAGES = ("numpy", "torch", "openTSNE", "umap-learn")
ENGINE = 4
"""Version of our t-SNE on a GPU. Maps of an earlier one are not taken from the cache: those of the
first could be wrong, those of the second were computed by other kernels, and those of the third had
a lower perplexity than asked for where it is above a third of the samples."""
logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class MapOptions:
    """Options of a map, shared by the filters that make one."""

    components: int = option(50, ge=1, only_with={"reduce": ("tsne", "pca", "umap")})
    """Principal components of the features that t-SNE sees."""
    perplexity: float = option(
        30.0, ge=1, only_with={"reduce": ("tsne", "umap"), "perplexities": False}
    )
    """Perplexity of t-SNE: roughly the number of neighbours that count."""
    tsne: TsneDefaults = option("opentsne", only_with={"reduce": ("tsne",)})
    """Defaults of t-SNE: openTSNE's, or scikit-learn's of 2020 (rate 200, 1,000 iterations, a
    random start), which make smaller maps."""
    learning_rate: float | None = option(None, gt=0, only_with={"reduce": ("tsne",)})
    """Learning rate of t-SNE, four times scikit-learn's for the same steps; by default the number
    of samples divided by the exaggeration, or 800 with `tsne` sklearn-2020."""
    exaggeration: float | None = option(None, ge=1, only_with={"reduce": ("tsne",)})
    """Factor of the attraction in the first 250 iterations of t-SNE; default 12."""
    iterations: int | None = option(None, ge=1, only_with={"reduce": ("tsne",)})
    """Iterations of t-SNE in all; default 750, or 1,000 with `tsne` sklearn-2020."""
    seed: int = option(0, ge=0, only_with={"reduce": ("tsne", "pca", "umap")})
    """Seed of every random choice; the same seed gives the same file."""
    device: str = option("auto", changes_result=False)
    """auto (a CUDA device if there is one), cpu or cuda."""


@dataclass(frozen=True)
class TsneSettings:
    """The settings of a t-SNE map that follow from the options and their defaults."""

    rate: float | None = None
    """None: the number of samples divided by the exaggeration in force."""
    exaggeration: float = 12.0
    iterations: int = 750
    start: Start = "pca"

    @property
    def phases(self) -> list[tuple[float, int]]:
        """Exaggeration and number of iterations, first with exaggeration and then without."""
        early = min(EXAGGERATED_ITERATIONS, self.iterations)
        return [(self.exaggeration, early), (1.0, self.iterations - early)]


TSNE_DEFAULTS: dict[TsneDefaults, TsneSettings] = {
    "opentsne": TsneSettings(),
    # scikit-learn's gradient has a factor of 4 that openTSNE's lacks: 200 there is 800 here. Its
    # momentum of 0.5 in the first 250 iterations (0.8 here) is not copied.
    "sklearn-2020": TsneSettings(rate=800.0, iterations=1000, start="random"),
}


def tsne_settings(options: MapOptions, start: Start | None = None) -> TsneSettings:
    """Return the settings of a t-SNE map: what the options and `start` give, else the defaults."""
    if options.tsne not in TSNE_DEFAULTS:
        hint = nearest(str(options.tsne), TSNE_DEFAULTS)
        raise InvalidValueError(f'tsne cannot be "{options.tsne}"', hint, "tsne")
    defaults = TSNE_DEFAULTS[options.tsne]
    return TsneSettings(
        defaults.rate if options.learning_rate is None else options.learning_rate,
        defaults.exaggeration if options.exaggeration is None else options.exaggeration,
        defaults.iterations if options.iterations is None else options.iterations,
        defaults.start if start is None else start,
    )


@dataclass(frozen=True)
class Reduction:
    """Points to cluster, and how they were made."""

    points: np.ndarray
    """(n, m) float32; m is 2 for a map."""
    kl: float | None = None
    """Kullback-Leibler divergence of a t-SNE map."""
    explained: float | None = None
    """Share of the variance that the principal components explain."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by stage; empty for a cached map."""


def cached_reduction(
    folder: Path | None,
    features: np.ndarray,
    options: MapOptions,
    method: Method = "tsne",
    start: Start | None = None,
) -> Reduction:
    """Return `reduce(features, options, method, start)`, cached in `folder`.

    The cache lies beside the features, so that another eps does not need another map. The file
    name is a hash of the features' bytes, the settings and the versions. Nothing is stored without
    a folder, or if it is not writable.
    """
    if folder is None or method == "none":
        return reduce(features, options, method, start)
    settings: dict[str, Any] = {
        "method": method,
        "components": options.components,
        "perplexity": options.perplexity,
        "seed": options.seed,
        "start": start or "pca",
        **_engine(method, likely_device(options.device)),
    }
    tsne = tsne_settings(options, start)
    if method == "tsne" and tsne != TsneSettings(start=start or "pca"):
        settings["tsne"] = asdict(tsne)  # maps with the defaults keep the keys of version 0.1
    digest = hashlib.sha256(f"{features.shape} {features.dtype}".encode())
    for begin in range(0, len(features), BLOCK_ROWS):
        digest.update(np.ascontiguousarray(features[begin : begin + BLOCK_ROWS]).data)
    path = folder / _map_name(digest, settings)
    stored = _stored(path, len(features))
    if stored is None:
        # From here on torch is needed, which knows the device and, as in the names of version 0.1,
        # the version of CUDA.
        if settings["device"] == "cuda":
            start_gpu()
            if method == "tsne":
                start_compiling(TSNE)
        settings |= _engine(method, str(choose_device(options.device)))
        path = folder / _map_name(digest, settings)
        former = folder / _map_name(digest, settings, versions(PACKAGES))
        stored = _stored(path, len(features)) or _stored(former, len(features))
    if stored is not None:
        return stored
    reduction = reduce(features, options, method, start)
    try:
        with atomic_file(path) as temporary, open(temporary, "wb") as out:
            facts = {"kl": reduction.kl, "explained": reduction.explained, "settings": settings}
            np.savez(out, points=reduction.points, told=np.array(json.dumps(facts)))
    except ThresherError as error:
        logger.warning("The map is not cached: %s", error)
    return reduction


def _engine(method: Method, device: str) -> dict[str, Any]:
    """Return the settings that say what computes a map."""
    own = method == "tsne" and device.startswith("cuda")
    return {"device": device, **({"engine": ENGINE} if own else {})}


def _map_name(
    features: "hashlib._Hash", settings: dict[str, Any], installed: dict[str, str] | None = None
) -> str:
    if installed is None:
        installed = versions(PACKAGES)
        installed.pop("cuda", None)  # known only if torch is loaded
    digest = features.copy()
    digest.update(json.dumps([settings, installed], sort_keys=True).encode())
    return f"{digest.hexdigest()[:24]}.npz"


def _stored(path: Path, samples: int) -> Reduction | None:
    """Return the map in a file; None if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            points, facts = file["points"], json.loads(str(file["told"]))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    if len(points) != samples:
        return None
    logger.info("Using the cached map %s", path)
    return Reduction(points, facts["kl"], facts["explained"])


def reduce(
    features: np.ndarray, options: MapOptions, method: Method = "tsne", start: Start | None = None
) -> Reduction:
    """Reduce features (n, d), any float type, possibly memory-mapped.

    "tsne" and "umap" give a map (n, 2) of the principal components, "pca" the components, "none"
    the features. t-SNE starts from the first two components, from which the seed hardly matters,
    or from a random cloud; without `start`, as `options.tsne` does.
    """
    for name, value, known in (("method", method, Method), ("start", start, Start)):
        if value is not None and value not in get_args(known):
            raise InvalidValueError(
                f'{name} cannot be "{value}"', nearest(value, get_args(known)), name
            )
    features = np.asanyarray(features)
    if features.ndim != 2 or len(features) < 3:
        raise InvalidValueError(
            f"features must be (n, d) with at least three rows, got {features.shape}",
            "",
            "features",
        )
    if method == "none":
        points = np.asarray(features, dtype=np.float32)
        if not np.isfinite(points).all():
            raise InvalidValueError("features must be finite", "", "features")
        return Reduction(points)
    device = choose_device(options.device)
    loaded: AbstractContextManager[None] = nullcontext()
    if method == "tsne" and device.type == "cuda":
        from thresher.select.tsne_loading import loading

        loaded = loading(len(features), device)
    with loaded:
        begin = time.perf_counter()
        x, explained = _principal(features, options, device)
        seconds = {"pca": time.perf_counter() - begin}
        if method == "pca":
            return Reduction(x.cpu().numpy(), explained=explained, seconds=seconds)
        begin = time.perf_counter()
        kl: float | None = None
        if method == "umap":
            points = _umap(x.cpu().numpy(), options)
        else:
            engine = _own_tsne if x.device.type == "cuda" else _open_tsne
            settings = tsne_settings(options, start)
            points, kl = engine(x, _initial(x, options.seed, settings.start), options, settings)
        seconds[method] = time.perf_counter() - begin
        return Reduction(points, kl, explained, seconds)


def _principal(
    features: np.ndarray, options: MapOptions, device: "torch.device"
) -> "tuple[torch.Tensor, float]":
    """Return the principal components (n, m) on the device, and the variance they explain."""
    from thresher.select.feature_blocks import on_device
    from thresher.select.pca import fit_pca

    resident: np.ndarray | torch.Tensor = features
    if device.type == "cuda" and features.nbytes <= RESIDENT_BYTES:
        # PCA reads the features three times; up to a few gigabytes they move to the device once.
        resident = on_device(features, device)
    pca = fit_pca(resident, options.components, options.seed, device)
    return pca.project(resident), float(pca.explained.sum())


def _initial(x: "torch.Tensor", seed: int, start: Start) -> np.ndarray:
    """Return the points before the first step, (n, 2) float64 with a standard deviation of 1e-4.

    Either the first two columns of x, with a seeded jitter of a hundredth that separates copies,
    or a seeded random cloud.
    """
    random = np.random.default_rng(seed)
    if start == "random":
        return random.normal(0, START_STD, (len(x), 2))
    points = np.zeros((len(x), 2))
    points[:, : min(2, x.shape[1])] = x[:, :2].double().cpu().numpy()
    std = points[:, 0].std()
    points *= START_STD / std if std > 0 else 0.0
    return points + random.normal(0, START_STD * JITTER, points.shape)


def _own_tsne(
    x: "torch.Tensor", initial: np.ndarray, options: MapOptions, settings: TsneSettings
) -> tuple[np.ndarray, float]:
    import torch

    from thresher.select.affinities import affinities
    from thresher.select.tsne import descend

    with importing("scipy.spatial"):  # which DBSCAN needs next
        p = affinities(x.float(), options.perplexity)
        start = torch.from_numpy(initial).to(x.device, torch.float32)
        y, kl = descend(p, start, settings.phases, settings.rate, options.seed)
    return y.float().cpu().numpy(), round(float(kl), 6)


def _open_tsne(
    x: "torch.Tensor", initial: np.ndarray, options: MapOptions, settings: TsneSettings
) -> tuple[np.ndarray, float]:
    from openTSNE import TSNE
    from openTSNE.affinity import PerplexityBasedNN
    from openTSNE.nearest_neighbors import PrecomputedNeighbors

    from thresher.select.neighbours import nearest

    # Threads wait for each other at every iteration, spinning: 240 points on two busy cores took
    # 11 CPU seconds with two threads and 1.3 with one.
    jobs = max(1, min(core_count(), len(x) // 500))
    perplexity = options.perplexity
    (_, early), (_, late) = settings.phases
    with bar("t-SNE", settings.iterations, "iterations") as shown:

        def note(iteration: int, error: float, embedding: np.ndarray) -> bool:
            shown.note(f"KL {error:.3f}")
            shown.advance(NOTE_EVERY)
            return False  # which lets the optimisation continue

        squared, near = nearest(x, min(len(x) - 1, int(3 * perplexity)))
        index = PrecomputedNeighbors(near.int().numpy(), squared.sqrt().numpy())
        affinities = PerplexityBasedNN(perplexity=perplexity, knn_index=index, n_jobs=jobs)
        model = TSNE(
            perplexity=perplexity,
            initialization=initial,
            learning_rate="auto" if settings.rate is None else settings.rate,
            early_exaggeration=settings.exaggeration,
            early_exaggeration_iter=early,
            n_iter=late,
            n_jobs=jobs,
            random_state=options.seed,
            callbacks=note,
            callbacks_every_iters=NOTE_EVERY,
        )
        embedding = model.fit(affinities=affinities)
    # openTSNE's threads sum the divergence in any order, so its last digits vary.
    return np.asarray(embedding, dtype=np.float32), round(float(embedding.kl_divergence), 6)


def _umap(x: np.ndarray, options: MapOptions) -> np.ndarray:
    try:
        import umap
    except ImportError:
        raise MissingDependencyError(
            "UMAP is not installed", "`pip install umap-learn`, or use `reduce` tsne"
        ) from None
    neighbours = max(2, min(len(x) - 1, round(options.perplexity / 2)))
    model = umap.UMAP(n_neighbors=neighbours, random_state=options.seed, n_jobs=1)
    return np.asarray(model.fit_transform(x), dtype=np.float32)
