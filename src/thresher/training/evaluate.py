"""Exact evaluation: every sample once, on any number of workers."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from thresher.data.order import bounds, part
from thresher.device_check import host_of, wide
from thresher.distributed.group import Group
from thresher.training.execution import kernel_search
from thresher.training.step import Step
from thresher.training.undo import kept

BATCH = 1024


def evaluate(
    step: Step, positions: np.ndarray, correct: Tensor | None = None
) -> tuple[float, float]:
    """Return accuracy and mean loss on the samples at `positions`; nan if there are none.

    Logits that are nan predict no class; if all are, the accuracy is nan too. `correct`, (n,) zeros
    on the group's device, is set to 1 where the prediction is right, on every worker.
    """
    if not len(positions):
        return float("nan"), float("nan")
    model, group, data, kind = step.model, step.group, step.data, step.config.views
    mine = part(positions, group.rank, group.world)
    done, _ = bounds(len(positions), group.rank, group.world)
    cuts = [mine[begin : begin + BATCH] for begin in range(0, len(mine), BATCH)]
    sums = torch.zeros(3, dtype=torch.float64, device=host_of(group.device))
    was_training = model.training
    model.eval()
    apart = step.exchange.samples_apart
    with torch.no_grad(), kernel_search(len(cuts)), averaged(model, group, apart):
        for batch in data.loader.batches(cuts):
            seen = map(data.moved, views(data.augment.evaluate(batch.images), kind))
            with step.autocast():
                logits = torch.stack([model(view) for view in seen]).mean(0)
            logits = wide(logits)
            # argmax would take the first class for nan, which may be the most frequent one.
            known = ~logits.isnan().any(1)
            right = (logits.argmax(1) == batch.labels) & known
            sums[0] += right.sum()
            sums[2] += known.sum()
            if correct is not None:
                correct[done : done + len(right)] = right
                done += len(right)
            sums[1] += F.cross_entropy(logits, batch.labels, reduction="sum")
    model.train(was_training)
    if correct is not None:
        group.all_reduce_sum(correct)
    count, loss, known_count = group.all_reduce_sum(sums).tolist()
    accuracy = count / len(positions) if known_count else float("nan")
    return accuracy, loss / len(positions)


def views(images: Tensor, kind: str) -> list[Tensor]:
    """Return the views of images (n, channels, height, width) that `AugmentConfig.views` names.

    "shift" adds those moved by a pixel along both diagonals; the middle one counts twice, so that
    it weighs as much as the two together.
    """
    seen = [images]
    if kind == "shift":
        height, width = images.shape[2:]
        # A single row or column has no other one to reflect.
        padded = F.pad(images, (1, 1, 1, 1), "reflect" if min(height, width) > 1 else "replicate")
        seen += [images, padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
    return seen if kind == "one" else [*seen, *(view.flip(3) for view in seen)]


@contextlib.contextmanager
def averaged(model: nn.Module, group: Group, samples_apart: int | None = None) -> Iterator[None]:
    """Use the workers' mean running statistics in the block; each gets its own back afterwards.

    Weights differ between workers with local SGD, between two averages. With `samples_apart`, those
    that this worker has trained on since the last one, the block uses what an average would give:
    mean weights too, weighted by those samples.
    """
    floats = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if samples_apart is not None:
        floats += [parameter.data for parameter in model.parameters()]
    if group.alone or not floats:
        yield
        return
    with kept(floats):
        group.set_to_mean(floats, 1 if samples_apart is None else samples_apart)
        yield
