"""The part of an embedding that one worker computes: chunks of a few batches."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from thresher.data.augment import Augment
from thresher.data.loader import Loader
from thresher.distributed.group import Group
from thresher.errors import InvalidValueError
from thresher.models.features import FeaturePaths, FeaturesMeta, features_and_logits
from thresher.progress import bar

BATCHES_PER_CHUNK = 8


@dataclass(frozen=True)
class ChunkWork:
    """Computes features on one worker, and marks the chunks that are on disk."""

    model: nn.Module
    augment: Augment
    loader: Loader
    staging: FeaturePaths
    plan: FeaturesMeta

    @property
    def batch_size(self) -> int:
        assert self.plan.batch_size is not None
        return self.plan.batch_size

    def missing(self) -> list[int]:
        """Return the first rows of the chunks that are not done."""
        begins = range(0, len(self.loader), self.batch_size * BATCHES_PER_CHUNK)
        return [begin for begin in begins if not self._marker(begin).exists()]

    @torch.inference_mode()
    def run(self, chunks: list[int], group: Group) -> None:
        """Compute the chunks that begin at these rows; mark each when it is on disk."""
        spans = [(begin, *span) for begin in chunks for span in self._spans(begin)]
        array = np.load(self.staging.array, mmap_mode="r+")
        classes = None
        if self.plan.probabilities:
            classes = np.load(self.staging.probabilities, mmap_mode="r+")
        label = "embedding" if group.alone else f"embedding (worker 1 of {group.world})"
        with bar(label, sum(end - first for _, first, end in spans), "samples") as shown:
            order = (self.loader.positions[first:end] for _, first, end in spans)
            for (begin, first, end), batch in zip(spans, self.loader.batches(order), strict=True):
                images = self.augment.evaluate(batch.images)
                features, logits = features_and_logits(self.model, images)
                array[first:end] = self._stored(features, array.dtype)
                if classes is not None:
                    classes[first:end] = logits.float().softmax(1).cpu().numpy()
                if end == self._spans(begin)[-1][1]:
                    array.flush()
                    if classes is not None:
                        classes.flush()
                    self._marker(begin).touch()
                if group.first:
                    shown.advance(end - first)

    def _spans(self, begin: int) -> list[tuple[int, int]]:
        """Return the batches of the chunk that begins at this row, as (first, end) rows."""
        last = min(begin + self.batch_size * BATCHES_PER_CHUNK, len(self.loader))
        firsts = range(begin, last, self.batch_size)
        return [(first, min(first + self.batch_size, last)) for first in firsts]

    def _marker(self, begin: int) -> Path:
        return self.staging.root / f"{begin}.done"

    def _stored(self, features: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray:
        exact = features.float().cpu().numpy()
        if not np.isfinite(exact).all():
            raise InvalidValueError(
                f"the features of {self.plan.run or self.plan.model} are not finite",
                "the run diverged, or its weights are damaged: choose another",
            )
        with np.errstate(over="ignore"):
            stored = exact.astype(dtype)
        if not np.isfinite(stored).all():
            raise InvalidValueError("features are too large for float16", "use `dtype` float32")
        return stored
