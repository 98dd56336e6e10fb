"""Filters that score samples by the record of a training run: EL2N, forgetting, AUM and more."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from thresher.select.filters.base import ShareFilter
from thresher.select.inputs import FilterInputs, Need


@dataclass(kw_only=True)
class DynamicsFilter(ShareFilter):
    """A filter that scores samples by the record of a training run."""

    needs: ClassVar[tuple[Need, ...]] = ("dynamics",)
    hardness: ClassVar[bool] = True

    side: Literal["hard", "easy"] = "hard"
    """Which end to drop: hard (mislabelled or odd samples) or easy (redundant ones)."""

    def _drop_side(
        self,
        inputs: FilterInputs,
        hardness: np.ndarray,
        reason: str,
        shown: np.ndarray | None = None,
    ) -> None:
        score = hardness if self.side == "hard" else -hardness
        self._drop_highest(inputs, score, reason, hardness if shown is None else shown)


@dataclass(kw_only=True)
class EL2NFilter(DynamicsFilter):
    """Drop samples by EL2N, the norm of the error early in training.

    The score is the norm of softmax output minus one-hot label (Paul et al., "Deep Learning on a
    Data Diet", 2021), averaged over the runs given. The paper takes ten short runs, each at one
    checkpoint and without augmentation, and drops the easy end to save time: train ten runs of a
    few epochs, and give `checkpoint` and `side` easy. By default this filter uses what a run
    recorded while it trained (with augmentation, averaged over its first ten epochs), and drops
    the hard end to remove mislabelled samples. Costs a sort, and with `checkpoint` a pass over the
    data per run. Samples that no run trained on are kept.

    Examples:
        >>> fitted = EL2NFilter(drop=0.5).fit(None, [0, 0], dynamics={"el2n": [0.1, 0.9]})
        >>> fitted.keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "el2n"
    needs: ClassVar[tuple[Need, ...]] = ("dynamics", "other_dynamics")

    checkpoint: bool = False
    """Score each run's final network without augmentation, instead of what it recorded."""

    def _fit(self, inputs: FilterInputs) -> None:
        records = [inputs.need_dynamics("el2n")]
        records += [np.asarray(record["el2n"]) for record in inputs.other_dynamics]
        errors = np.stack(records).astype(np.float64)
        known = np.isfinite(errors)
        total = np.where(known, errors, 0.0).sum(axis=0)
        error = np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)
        self.report_["runs"] = len(records)
        self._drop_side(inputs, error, "EL2N {:.3f}")


@dataclass(kw_only=True)
class ForgettingFilter(DynamicsFilter):
    """Drop samples by how often they were forgotten during training.

    A sample is forgotten when the network classifies it correctly in one epoch and wrongly in the
    next (Toneva et al., "An Empirical Study of Example Forgetting", 2019). Samples that were never
    learned count as the hardest; the last loss breaks ties, of which there are thousands. The
    paper drops the easy end to save time. Costs a sort. Samples that the run did not train on are
    kept.

    Examples:
        >>> record = {"forgetting": [0, 3], "learned_epoch": [1, 2], "loss": [0.1, 0.2]}
        >>> ForgettingFilter(drop=0.5).fit(None, [0, 0], dynamics=record).keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "forgetting"

    def _fit(self, inputs: FilterInputs) -> None:
        events = inputs.need_dynamics("forgetting").astype(np.float64)
        never = inputs.need_dynamics("learned_epoch") < 0
        count = events.copy()
        count[never] = count.max(initial=0, where=np.isfinite(count)) + 1
        # The loss, squeezed below one, orders equal counts.
        loss = np.nan_to_num(inputs.need_dynamics("loss").astype(np.float64), nan=0.0)
        score = count + loss / (1 + np.abs(loss)) * 0.999
        self._drop_side(inputs, score, "forgotten {:.0f} times", events)
        for row in np.flatnonzero(never & ~self.keep_):
            self.reason_[row] = "never learned"
        self.report_["never_learned"] = int(never.sum())


@dataclass(kw_only=True)
class AUMFilter(DynamicsFilter):
    """Drop samples by the area under the margin, which is low for wrong labels.

    The margin is the logit of the label minus the largest other logit, averaged over all epochs of
    a run (Pleiss et al., "Identifying Mislabeled Data using the Area Under the Margin Ranking",
    NeurIPS 2020). The paper stops at the first drop of the learning rate, and finds the threshold
    with samples of an artificial class; this filter drops a share. Costs a sort. Samples that the
    run did not train on are kept.

    Examples:
        >>> AUMFilter(drop=0.5).fit(None, [0, 0], dynamics={"margin": [3.0, -1.0]}).keep_.tolist()
        [True, False]
    """

    name: ClassVar[str] = "aum"

    def _fit(self, inputs: FilterInputs) -> None:
        margin = inputs.need_dynamics("margin").astype(np.float64)
        self._drop_side(inputs, -margin, "mean margin {:.2f}", shown=margin)


@dataclass(kw_only=True)
class UncertaintyFilter(ShareFilter):
    """Drop samples whose predicted probability hardly changed during training.

    The score is the standard deviation of the probability of the label over ten consecutive epochs,
    averaged over all such windows of a run (He et al., "Large-scale Dataset Pruning with Dynamic
    Uncertainty", CVPR Workshops 2024); the lowest are dropped, both easy samples and ones never
    learned. The probabilities are those of the training steps, as in the paper; a run of fewer than
    ten epochs has one shorter window. Costs a sort. Samples that the run trained on in fewer than
    two epochs are kept.

    Examples:
        >>> steady = UncertaintyFilter(drop=0.5)
        >>> steady.fit(None, [0, 0], dynamics={"uncertainty": [0.01, 0.2]}).keep_.tolist()
        [False, True]
    """

    name: ClassVar[str] = "uncertainty"
    needs: ClassVar[tuple[Need, ...]] = ("dynamics",)

    def _fit(self, inputs: FilterInputs) -> None:
        deviation = inputs.need_dynamics("uncertainty").astype(np.float64)
        self._drop_highest(inputs, -deviation, "deviation {:.3f}", shown=deviation)
