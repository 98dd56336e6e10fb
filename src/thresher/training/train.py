"""`train(config)`: one training run, from its configuration to its result."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thresher.data.device_crop_reader import missing_package
from thresher.data.images import jpeg_decoder
from thresher.data.labels import mention_untrained
from thresher.data.pack import Pack
from thresher.device_check import is_tested
from thresher.distributed.group import join, placement
from thresher.distributed.launch import GroupStopped
from thresher.distributed.worker import run_in_group
from thresher.effect import mention, names_shown
from thresher.errors import InvalidValueError, check_type, counted
from thresher.paths import RunPaths
from thresher.training import folder
from thresher.training.augmentation import augment_kind, image_sides, make_augment
from thresher.training.batch_schedule import with_schedule_inline
from thresher.training.branch import check_branch
from thresher.training.config import TrainConfig, check
from thresher.training.execution import free_device_memory, torch_settings, weight_dtype
from thresher.training.gpu_streams import open_queues, stream_of_steps
from thresher.training.graph import graph_refused, why_not
from thresher.training.model import build_model, check_model, initialize_from_data
from thresher.training.prepared import Workload
from thresher.training.presets import preset
from thresher.training.pruners import DynamicPruner, make_pruner
from thresher.training.record import TargetConfig
from thresher.training.resolved import resolve
from thresher.training.result import RunResult
from thresher.training.sharing import release
from thresher.training.split import TrainingSplit, split_samples
from thresher.training.stop import listen
from thresher.training.trainer import Trainer

NVJPEG = "nvJPEG"
logger = logging.getLogger(__name__)


def train(
    config: TrainConfig, *, pruner: DynamicPruner | None = None, quiet: bool = False
) -> RunResult:
    """Train one network and return its result.

    Under torchrun or srun this process is one of their workers. Otherwise `config.workers` above
    one starts that many processes on this machine.

    Args:
        config: What to train, on what, and how.
        pruner: A dynamic pruner of your own, on one worker or under torchrun; otherwise
            `config.dynamic` names one.
        quiet: Show neither the derived settings nor a progress bar.

    Returns:
        The result, also written to `result.json` in the folder `config.out`. With
        `config.resume`, that of a run which has finished already.

    Raises:
        ThresherError: A setting is wrong, or the folder holds another run.

    Example:
        >>> from thresher import TrainConfig, train
        >>> result = train(TrainConfig(data="digits", epochs=1, out="run"), quiet=True)
        >>> result.status, result.steps, result.accuracy > 0.2
        ('finished', 12, True)
    """
    fix = "build one: `TrainConfig(data=…, out=…)`, where data is a pack"
    check_type(config, TrainConfig, "config", "a TrainConfig", fix)
    open_queues()
    config = with_schedule_inline(config)
    check(config)
    config = TrainConfig.from_dict(config.to_dict())  # numpy's numbers as Python's, for JSON
    config = folder.as_begun(config)
    check_branch(config)
    if config.branch_from is not None:
        folder.check_same_files(replace(config, weights=None), config.branch_from)
    in_group = config.workers > 1 and placement().world == 1
    if in_group and pruner is not None:
        raise InvalidValueError(
            "a pruner object cannot be sent to worker processes",
            "set `workers` to 1, use `dynamic`, or start the workers with torchrun",
            "pruner",
        )
    if pruner is not None and config.branch_from is not None:
        what = "`branch_from` does not work with a pruner"
        raise InvalidValueError(what, "leave one of them out", "pruner")
    if pruner is None:
        pruner = make_pruner(config.dynamic)
    finished = folder.finished(config)
    if finished is not None:
        return finished
    if in_group:
        return _train_in_group(config, quiet)
    try:
        return _train_here(config, pruner, quiet)
    finally:
        free_device_memory(config)


def _train_in_group(config: TrainConfig, quiet: bool) -> RunResult:
    """Train in worker processes on this machine; refuse what can be refused before they start."""
    release()
    folder.admit(config)
    pack = Pack.open(config.data)
    split = split_samples(config, pack)
    _check_target(config, split)
    resolve(config, split.count, len(split.train))
    if not quiet:
        _mention_idle(config, pack, split, config.workers)
    order = {"config": config.to_dict(), "quiet": quiet}
    target = "thresher.training.train:train_in_worker"
    try:
        answer = run_in_group(target, order, config.workers, config.max_restarts)
        return RunResult.from_dict(answer)
    except GroupStopped:
        if RunPaths(Path(config.out)).result.exists():
            return RunResult.load(config.out)
        raise  # it was still starting


def train_in_worker(order: Mapping[str, Any]) -> dict[str, Any]:
    """Train as one worker of a group that `train` started."""
    with names_shown(None):  # `train` has said it before
        return train(TrainConfig.from_dict(order["config"]), quiet=order["quiet"]).to_dict()


def _mention_idle(config: TrainConfig, pack: Pack, split: TrainingSplit, workers: int) -> None:
    """Say which options have no effect on this data, with so many workers."""
    augment = make_augment(config, pack, weight_dtype(config))
    held = len(pack.indices("train")) - len(split.train)
    facts = {"flip": augment.flip, "crop_padding": augment.crop_padding, "workers": workers}
    mention(config, {**facts, "validation": held}, preset(config.model))
    if config.workers not in (1, workers):
        logger.warning(
            f"workers {config.workers} has no effect: torchrun or srun has started {workers}"
        )


def _train_here(config: TrainConfig, pruner: DynamicPruner | None, quiet: bool) -> RunResult:
    """Train in this process, perhaps as one worker of a group."""
    work = _open(config, pruner)
    if not quiet and placement().rank == 0:
        _mention_idle(config, work.pack, work.split, placement().world)
    group = join(config.device)
    config = _on_device(config, work.pack, group.device)
    decoder = _decoder(config, work.pack)
    resolved = replace(work.resolved, precision=config.precision, decoder=decoder)
    work = replace(work, resolved=resolved)
    reason = why_not(config, group)
    if config.graph == "on" and reason is not None:
        raise graph_refused(reason)
    if config.decoder == "gpu":
        _check_gpu_decoder(work.resolved.decoder, group.device.type)
    stream = stream_of_steps(group.device, decodes=decoder == NVJPEG)
    with torch_settings(config, group), stream, listen() as request, folder.owned(config, group):
        return Trainer(config, group, work, request).run(quiet)


def _open(config: TrainConfig, pruner: DynamicPruner | None) -> Workload:
    """Open the data and build the network; what is wrong with them is refused here."""
    pack = Pack.open(config.data)
    split = split_samples(config, pack)
    _check_target(config, split)
    if split.unnamed and placement().rank == 0:
        logger.warning(
            f"{counted(split.unnamed, 'training sample is', 'training samples are')} left out "
            f"because the selection {config.selection} does not name "
            f"{'it' if split.unnamed == 1 else 'them'}; if the splits of the pack have changed, "
            "select again"
        )
    if placement().rank == 0:
        labels = pack.labels[split.train] if split.labels is None else split.labels
        tested = pack.labels[np.concatenate([split.validation, split.test])]
        mention_untrained(pack.classes, labels[split.kept], tested)
    resolved = resolve(config, split.count, len(split.train), placement().world)
    augment = make_augment(config, pack, weight_dtype(config))
    sides = augment.output_size(*image_sides(config, pack))
    resolved = replace(resolved, augment=augment_kind(config, pack), image_size=sides[0])
    model = build_model(config, pack, config.seed, sides)
    initialize_from_data(model, config, pack, split.train[split.kept], augment)
    summed = placement().world > 1 and config.engine == "ddp" and not config.delay
    shape, classes = (len(pack.mean), *sides), len(pack.classes)
    check_model(model, config.model, shape, classes, not summed or config.average_every > 1)
    return Workload(pack, split, resolved, model, pruner)


def _check_target(config: TargetConfig, split: TrainingSplit) -> None:
    """Refuse a target that nothing can be measured on."""
    for name in ("target_accuracy", "target_loss"):
        if getattr(config, name) is not None and not len(split.watched):
            what = f"`{name}` needs validation or test images, and the data has none"
            raise InvalidValueError(what, "hold some out with `validation`", name)


def _on_device(config: TrainConfig, pack: Pack, device: torch.device) -> TrainConfig:
    """Replace `auto` by what it stands for here."""
    precision, decoder, cuda = config.precision, config.decoder, device.type == "cuda"
    if precision == "auto":
        half = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if half else "fp32"
    elif precision != "fp32" and not is_tested(device):
        raise InvalidValueError(
            f"precision must be fp32 on {device.type}, got {precision}", "", "precision"
        )
    if decoder == "auto":
        crops = pack.image_shape is None and augment_kind(config, pack) == "imagenet"
        decoder = "gpu" if crops and cuda and missing_package() is None else "cpu"
    return replace(config, precision=precision, decoder=decoder)


def _decoder(config: TrainConfig, pack: Pack) -> str | None:
    """Return what decodes the images; None if they are stored as pixels."""
    if pack.image_shape is not None:
        return None
    on_gpu = config.decoder == "gpu" and augment_kind(config, pack) == "imagenet"
    return NVJPEG if on_gpu else jpeg_decoder()


def _check_gpu_decoder(used: str | None, device: str) -> None:
    """Refuse decoder gpu where another one would be used."""
    reason = "it needs a GPU" if device != "cuda" else None
    if used is None:
        reason = "the images are stored as pixels"
    elif used != NVJPEG:
        reason = "it works only with augment imagenet"
    if reason is not None:
        raise InvalidValueError(f"decoder cannot be gpu: {reason}", "use decoder cpu", "decoder")
