"""Audit a pack: find copies, leaks, label errors, outliers and broken images, and drop them.

Needs no network of the user's: a small one is trained on the images for a few epochs, so that it
has not memorised the labels. Probabilities come from a cross-validated classifier on its features.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from thresher.auditing.checks import Checks
from thresher.auditing.config import AuditConfig
from thresher.auditing.findings import FORMAT, KINDS, Audit
from thresher.data.digest import file_sha256
from thresher.data.pack import Pack
from thresher.data.selection import Selection
from thresher.effect import mention
from thresher.environment import versions
from thresher.errors import (
    AlreadyExistsError,
    InvalidValueError,
    NotFoundError,
    ThresherError,
    counted,
)
from thresher.foreign_data import instead_of
from thresher.locks import exclusive_lock
from thresher.models.embed_config import EFFICIENTNET, HUGGING_FACE, EmbedConfig
from thresher.models.features import FeaturePaths, Features, ids_beside
from thresher.models.registry import source_digest
from thresher.options import to_mapping
from thresher.paths import (
    AuditPaths,
    PackPaths,
    RunPaths,
    SelectionPaths,
    as_path,
    check_format,
    read_json,
    read_run_json,
    write_json,
)
from thresher.select.inputs import FilterInputs
from thresher.select.run import PACKAGES, open_features, training_inputs, with_features

logger = logging.getLogger(__name__)


def audit(data: Pack | str | Path, out: str | Path, config: AuditConfig | None = None) -> Audit:
    """Look for faults in images, and write a selection without them to the folder `out`.

    An interrupted audit resumes; a finished one with the same options is returned as it is.
    `write_report` writes its page.

    Args:
        data: A pack, the name of one in the cache, or a folder of images (`class/name.ext` or
            `split/class/name.ext`), which is packed into `out` first.
        out: Folder to write to.
        config: Options; by default a small network is trained on the images.

    Returns:
        The findings, most serious first, and the path of the selection.

    Raises:
        AlreadyExistsError: `out` holds something else, or an audit with other options, or the run
            or the features have changed since.
        InvalidValueError: An option is wrong, or there are no training images.
        NotFoundError: There is no such data.

    Example:
        >>> from thresher import AuditConfig, audit
        >>> found = audit("digits", "AUDIT", AuditConfig(epochs=1, device="cpu"))
        >>> found.train, found.selection
        (1437, 'AUDIT/selection.parquet')
    """
    config = config or AuditConfig()
    config.check()
    mention(config)
    paths = AuditPaths(as_path(out, "out"))
    pack = data if isinstance(data, Pack) else open_images(data, paths)
    plan: dict[str, Any] = {
        "data": str(pack.root.resolve()),
        "fingerprint": pack.fingerprint,
        "checksum": pack.checksum,  # the fingerprint does not tell splits apart
        "settings": to_mapping(config),
    }
    plan |= {**_checksums(config), "model_source": _network_source(config)}
    check_audit_folder(paths)
    inputs = training_inputs(pack)  # raises if there are none, before anything is written
    busy = f"another process is writing to {paths.root}"
    with exclusive_lock(paths.lock, busy), _no_plan_left(paths):
        _check_plan(paths, plan)
        if not paths.result.exists():
            _look(pack, inputs, paths, config, plan)
        return _read(paths)


def open_images(data: str | Path, paths: AuditPaths) -> Pack:
    """Open a pack, or pack a folder of images into the folder of the audit."""
    source = as_path(data, "data", instead_of(data))
    if not source.exists() or PackPaths(source).meta.exists():
        return Pack.open(data)
    from thresher.data.sources.registry import open_source
    from thresher.data.write import write_pack

    check_audit_folder(paths)
    opened = open_source(source)
    if PackPaths(paths.pack).meta.exists():
        pack = Pack.open(paths.pack)
        if pack.meta.source == opened.key():
            return pack
        raise InvalidValueError(
            f"{data} has changed since the audit in {paths.root} was started",
            "choose another name",
        )
    return write_pack(opened, paths.pack)


def _read(paths: AuditPaths) -> Audit:
    content = read_json(paths.result)
    check_format(content, FORMAT, str(paths.result))
    try:
        stored = Audit.from_dict(content)
    except InvalidValueError:
        raise InvalidValueError(f"{paths.result} is damaged", "remove it and audit again") from None
    # The folder may have been moved.
    return replace(stored, selection=str(paths.selection), page=str(paths.page))


def check_audit_folder(paths: AuditPaths) -> None:
    """Raise if a folder holds anything but an audit."""
    if paths.root.is_file() or (
        paths.root.is_dir()
        and not any(path.exists() for path in (paths.plan, paths.pack, paths.lock))
        and any(not entry.name.startswith(".") for entry in paths.root.iterdir())
    ):
        raise AlreadyExistsError(
            f"{paths.root} exists already and is not an audit", "choose another name"
        )


@contextlib.contextmanager
def _no_plan_left(paths: AuditPaths) -> Iterator[None]:
    """Remove a new plan if nothing was computed; the lock removes itself and a new folder."""
    created = not paths.plan.exists()
    try:
        yield
    except ThresherError:
        if created and set(paths.root.iterdir()) <= {paths.plan, paths.lock}:
            paths.plan.unlink(missing_ok=True)
        raise


def _checksums(config: AuditConfig) -> dict[str, str]:
    """Return checksums of the weights or features that the options name, where the files exist."""
    found: dict[str, str] = {}
    if config.model is not None and config.model.startswith(HUGGING_FACE):
        from thresher.models.hugging_face import weights_digest

        with contextlib.suppress(NotFoundError):
            found["seen_with"] = weights_digest(config.model)
        return found
    file = _given_file(config)
    if file is not None and file.is_file():
        found["seen_with"] = file_sha256(file)
    if file is not None and file == config.features and file.suffix == ".npy":
        ids = ids_beside(file)
        found |= {"seen_ids": file_sha256(ids)} if ids.is_file() else {}
    return found


def _given_file(config: AuditConfig) -> Path | None:
    """Return the weights or features that the options name; None for a network of its own."""
    if config.run is not None:
        return RunPaths(config.run).model
    if config.features is not None:
        return FeaturePaths(config.features).array if config.features.is_dir() else config.features
    if config.model == EFFICIENTNET:
        from thresher.models.pretrained import weights_file

        return weights_file()
    return None


def _network_source(config: AuditConfig) -> str | None:
    """Return the checksum of the file of a network of one's own; None for others."""
    name: Any = config.network
    if config.run is not None and RunPaths(config.run).config.exists():
        begun = read_run_json(RunPaths(config.run).config, "run")
        name = begun.get("config", {}).get("model")
    return source_digest(str(name))


def _check_plan(paths: AuditPaths, plan: dict[str, Any]) -> None:
    if not paths.plan.exists():
        write_json(paths.plan, plan)
        return
    stored = read_json(paths.plan)
    for key in ("seen_with", "seen_ids", "model_source"):
        if isinstance(stored, dict) and (stored.get(key) is None or plan.get(key) is None):
            # The file is gone, or the audit is of an earlier version, which did not store it.
            stored, plan = ({**one, key: None} for one in (stored, plan))
    if stored != plan:
        raise AlreadyExistsError(
            f"{paths.root} holds an audit of other data, with other options or another network",
            "choose another name or remove it",
        )


def _look(
    pack: Pack, inputs: FilterInputs, paths: AuditPaths, config: AuditConfig, plan: dict[str, Any]
) -> None:
    features, network = _features(pack, inputs, paths, config)
    look = Checks(pack, with_features(inputs, features, pack), config)
    for step, what in (
        (look.broken, "broken and odd images"),
        (look.label_errors, "label errors"),
        (look.copies, "near-copies and leaks"),
        (look.outliers, "outliers"),
        (look.balance, "class balance"),
    ):
        logger.info("Looking for %s", what)
        step()
    _remove(paths.selection)
    selection = _selection(look, plan, features.path).save(paths.selection)
    order = list(KINDS)
    found = sorted(look.findings, key=lambda one: (one.count == 0, order.index(one.kind)))
    result = Audit(
        data=pack.name,
        fingerprint=pack.fingerprint,
        classes=len(pack.classes),
        train=len(inputs),
        test=len(look.others),
        kept=selection.kept,
        network=network,
        findings=tuple(found),
        selection=str(paths.selection),
        page=str(paths.page),
        notes=tuple(look.notes),
        settings=plan["settings"],
        versions=versions(PACKAGES),
    )
    write_json(paths.result, asdict(result))


def _selection(look: Checks, plan: dict[str, Any], origin: Path | None) -> Selection:
    """Return the selection, with the first two principal components of the features as a map."""
    from thresher.select.pca import fit_pca

    features, inputs = look.inputs.need_features(), look.inputs
    x = y = None
    if len(features) > 2 and features.shape[1] > 1:
        x, y = fit_pca(features, 2).project(features).cpu().numpy().T
    dropped = int((~look.keep).sum())
    return Selection(
        ids=list(inputs.ids),
        labels=inputs.labels,
        keep=look.keep,
        # What is dropped comes first, and the least likely labels first among those.
        score=look.doubt + ~look.keep,
        reason=look.reason,
        suggested=look.suggested,
        fingerprint=look.pack.fingerprint,
        class_names=tuple(look.pack.classes),
        copies=look.links,
        x=x,
        y=y,
        meta={
            "method": "audit",
            "data": plan["data"],
            "pack": look.pack.name,
            **({} if origin is None else {"features": str(origin.resolve())}),  # for the page
            "settings": plan["settings"],
            "kept": len(inputs) - dropped,
            "dropped": dropped,
            "dropped_share": dropped / len(inputs),
            "versions": versions(PACKAGES),
        },
    )


def _remove(selection: Path) -> None:
    """Remove what an interrupted audit wrote; there is no result yet, so nobody has used it."""
    files = SelectionPaths(selection)
    for file in (files.table, files.sidecar, files.overrides, files.copies):
        file.unlink(missing_ok=True)


def _features(
    pack: Pack, inputs: FilterInputs, paths: AuditPaths, config: AuditConfig
) -> tuple[Features, str]:
    """Return features of the training images, and what they come from."""
    if config.features is not None:
        return Features.open(config.features), f"features in {config.features}"
    if config.run is not None:
        return open_features(config.run, pack, config.device), f"the network of {config.run}"
    if config.model is not None:
        if paths.features.exists():
            return Features.open(paths.features), config.model
        from thresher.models.embed import embed_pack

        # At 224 pixels, 512 images at once would take gigabytes.
        chosen = EmbedConfig(model=config.model, device=config.device, batch_size=64)
        return embed_pack(chosen, pack, paths.features), config.model
    return _own_features(pack, inputs, paths, config)


def _own_features(
    pack: Pack, inputs: FilterInputs, paths: AuditPaths, config: AuditConfig
) -> tuple[Features, str]:
    """Train a small network on the images, and return its features."""
    from thresher.models.registry import check as check_model
    from thresher.training.config import TrainConfig
    from thresher.training.train import train

    side = max(pack.image_shape[:2]) if pack.image_shape else config.image_size
    if pack.image_shape and config.image_size != AuditConfig.image_size:
        size = "×".join(map(str, pack.image_shape[:2]))
        images = f"the images of {pack.name} all have {size} pixels"
        logger.warning(f"image_size has no effect: {images}")
    network = config.network
    if network == "auto":
        network = "tiny" if side <= 16 else "resnet20"
    check_model(network)
    batch = min(64, len(inputs)) if len(inputs) < 20_000 else 256
    # At least 150 steps, and few epochs, so that wrong labels are not memorised.
    epochs = config.epochs or (10 if batch == 256 else max(5, -(-150 * batch // len(inputs))))
    settings = TrainConfig.for_model(
        network,
        data=str(pack.root),
        out=str(paths.run),
        epochs=epochs,
        batch_size=batch,
        lr=0.1,
        warmup_epochs=1,
        validation=0,
        evaluate_every=0,
        augment="cifar",  # gentle, since there are few epochs
        image_size=None if pack.image_shape else config.image_size,
        seed=config.seed,
        device=config.device,
        resume=RunPaths(paths.run).config.exists(),
    )
    length = counted(epochs, "epoch")
    logger.info("Training %s for %s, to compute features of the images", network, length)
    result = train(settings)
    if result.status != "finished":
        raise ThresherError(
            f"training in {paths.run} ended as {result.status}",
            "run the same command again" if result.status == "stopped" else "give a `run`",
        )
    features = open_features(paths.run, pack, config.device)
    return features, f"{network}, trained for {length} on these images"
