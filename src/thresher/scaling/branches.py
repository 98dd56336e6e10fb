"""Measure the critical batch by branching (Merrill et al. 2025, "Critical batch size revisited").

A trunk trains at the smallest batch. From its state early, in the middle and late in training,
short branches go on at several batches, with rates by the rule times a tuned factor, and are
judged by their smoothed loss at equal samples (`branch_fit`). Each stage stands for a third of the
samples to the target, which gives the samples that each batch needs in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from thresher.data.pack import Pack
from thresher.progress import bar
from thresher.scaling.branch_fit import BranchFit, LossCurve, fit_branches, loss_slopes
from thresher.scaling.pilot_runs import cached_run, records, stable_run
from thresher.scaling.sample_model import rate_at
from thresher.training.config import TrainConfig
from thresher.training.result import RunResult

STAGES = (1 / 6, 1 / 2, 5 / 6)
"""Where branches begin, in samples to the target: the middle of each third."""
RATIOS = (1, 2, 4, 8)
"""Batches of the branches, in smallest ones."""
FACTORS = (0.5, 1.0, 2.0)
"""Factors on the rate by the rule, tried in the middle stage of the first trunk."""
LENGTH = 1 / 6
"""Samples of a branch, in samples to the target."""
STEPS_LEAST = 12
"""Steps of the largest batch in a branch: momentum remembers about ten."""


@dataclass(frozen=True)
class BranchStage:
    """The branches of one stage of training."""

    samples: int
    """Samples that the trunk had seen."""
    fit: BranchFit


@dataclass(frozen=True)
class Branches:
    """Result of `run_branches`."""

    batches: tuple[int, ...]
    stages: tuple[BranchStage, ...]
    """Early, middle and late."""
    factors: dict[int, float]
    """The tuned factor on the rate by the rule, by batch."""
    critical_batch: float
    """Of the whole training."""
    critical_batch_low: float | None
    """Low end of its 95 % interval; None if there is no bound."""
    critical_batch_high: float | None
    runs: int
    """Trunks, each with a seed of its own."""
    folders: tuple[str, ...] = field(repr=False)
    draws: tuple[float, ...] = field(default=(), repr=False)
    """Critical batches of the bootstrap."""


def combine(
    batch: int, fits: Sequence[BranchFit]
) -> tuple[float, float | None, float | None, tuple[float, ...]]:
    """Return the critical batch of a training of several stages, its interval and its draws.

    The stages take the same samples at `batch`. Each needs E_i(1 + B/B_i), and so does the sum:
    with E = Σ E_i, B_crit is E / Σ(E_i/B_i).
    """

    def whole(criticals: np.ndarray) -> np.ndarray:
        least = 1 / (1 + batch / criticals)
        return np.asarray(least.sum(axis=0) / (least / criticals).sum(axis=0))

    critical = float(whole(np.array([fit.critical_batch for fit in fits])))
    if not all(fit.draws for fit in fits):
        return critical, None, None, ()
    # The bootstraps of the stages are independent.
    shuffled = [np.random.default_rng(n).permutation(fit.draws) for n, fit in enumerate(fits)]
    draws = whole(np.array(shuffled))
    low, high = np.quantile(draws, [0.025, 0.975])
    return (
        critical,
        # The least of the stages counts most: one without a low end leaves none, and one with a
        # high end is enough.
        None if any(fit.low is None for fit in fits) else min(float(low), critical),
        None if all(fit.high is None for fit in fits) else max(float(high), critical),
        tuple(map(float, draws)),
    )


def run_branches(
    trunk: TrainConfig, seeds: Sequence[int], samples: float, critical: float
) -> Branches:
    """Train trunks and their branches, which are kept in the cache, and fit the critical batch.

    Args:
        trunk: A run at the smallest batch with a constant rate; its `epochs` do not count.
        seeds: Seeds of the trunks.
        samples: Samples that the trunk needs to the target.
        critical: A guess of the critical batch, for the rates of the branches.

    A killed measurement resumes. It trains on about ten times `samples`.
    """
    pack = Pack.open(trunk.data)
    held = int(trunk.validation or 0)
    count = len(pack.indices("train")) - held
    batches = [trunk.batch_size * ratio for ratio in RATIOS]
    length = max(LENGTH * samples, float(STEPS_LEAST * batches[-1]))
    total = len(seeds) * len(STAGES) * (1 + len(batches)) + len(batches) * (len(FACTORS) - 1)
    with bar("branches", total, "runs") as shown:
        work = _Work(trunk, pack, count, critical, length, shown.advance)
        trunks = {seed: work.trunk(seed, [stage * samples for stage in STAGES]) for seed in seeds}
        factors = work.tuned(trunks[seeds[0]][len(STAGES) // 2], batches)
        stages = []
        for states in zip(*trunks.values(), strict=True):
            curves = [{b: work.curve(state, b, factors[b]) for b in batches} for state in states]
            stages.append(BranchStage(states[0].samples, fit_branches(curves)))
    critical, low, high, draws = combine(trunk.batch_size, [stage.fit for stage in stages])
    return Branches(
        batches=tuple(batches),
        stages=tuple(stages),
        factors=factors,
        critical_batch=critical,
        critical_batch_low=low,
        critical_batch_high=high,
        runs=len(seeds),
        folders=tuple(work.folders),
        draws=draws,
    )


@dataclass
class _Work:
    """Trains trunks and branches."""

    base: TrainConfig
    pack: Pack
    count: int
    """Training samples in an epoch."""
    critical: float
    length: float
    """Samples of a branch."""
    advance: Callable[[], None]
    folders: list[str] = field(default_factory=list)

    def _run(self, run: TrainConfig, train: Callable[[TrainConfig, Pack], RunResult]) -> RunResult:
        run = replace(run, target_accuracy=None, evaluate_every=0, noise_scale=False)
        result = train(run, self.pack)
        if result.config.out not in self.folders:
            self.folders.append(result.config.out)
            self.advance()
        return result

    def trunk(self, seed: int, stages: Sequence[float]) -> list[RunResult]:
        """Return the states of a trunk after so many samples, each a run that goes on the last."""
        states: list[RunResult] = []
        for samples in stages:
            before = states[-1].config.out if states else None
            epochs = max(samples, self.base.batch_size) / self.count
            run = replace(self.base, seed=seed, epochs=epochs, branch_from=before)
            states.append(self._run(replace(run, keep_checkpoint=True), stable_run))
        return states

    def curve(self, state: RunResult, batch: int, factor: float) -> LossCurve:
        """Train a branch; return its losses by the samples that its weights have seen."""
        base = self.base
        run = replace(
            base,
            seed=state.config.seed,
            batch_size=batch,
            lr=factor * rate_at(batch, self.critical, base.batch_size, base.lr),
            epochs=(state.samples + self.length) / self.count,
            branch_from=state.config.out,
        )
        result = self._run(run, cached_run)
        lines = records(result, "step")
        if result.status == "diverged":
            # No progress: the loss stays that of the first step.
            return [(0.0, lines[0]["loss"]), (self.length, lines[0]["loss"])]
        begins = [state.samples, *(line["samples"] for line in lines)]
        return [
            (float(begin - state.samples), float(line["loss"]))
            for begin, line in zip(begins[:-1], lines, strict=True)
        ]

    def tuned(self, state: RunResult, batches: Sequence[int]) -> dict[int, float]:
        """Return for each batch the factor whose loss falls fastest from a state."""
        factors = {}
        for batch in batches:
            curves = [self.curve(state, batch, factor) for factor in FACTORS]
            factors[batch] = FACTORS[int(loss_slopes(curves).argmax())]
        return factors
