"""Does a filter choose the same samples twice? Votes over seeds, networks and perplexities."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import ClassVar

import numpy as np

from thresher.errors import ThresherError
from thresher.select.filters.base import Filter
from thresher.select.filters.network import NetworkFilter
from thresher.select.samples import Samples

NOISY_BELOW = 0.2


@dataclass(frozen=True)
class Stability:
    """How far several choices over the same samples agree."""

    votes: np.ndarray
    """(n,) float32, share of the choices that drop a sample."""
    jaccard: float
    """Mean over pairs of |both drop| / |either drops|."""
    expected: float
    """The same for random choices of those sizes."""
    lowest: float
    """Least Jaccard of any pair."""

    @property
    def agreement(self) -> float:
        """0 where choices overlap as random ones do, 1 where they are equal."""
        return (self.jaccard - self.expected) / (1 - self.expected) if self.expected < 1 else 1.0

    @property
    def noisy(self) -> bool:
        return self.agreement < NOISY_BELOW

    def report(self) -> dict[str, float | bool]:
        return {
            "jaccard": round(self.jaccard, 6),
            "lowest": round(self.lowest, 6),
            "expected_at_random": round(self.expected, 6),
            "agreement": round(self.agreement, 6),
            "noisy": self.noisy,
        }


def stability(drops: np.ndarray) -> Stability:
    """Compare choices drops (v, n) bool, v ≥ 2. Two choices that drop nothing agree (Jaccard 1)."""
    drops = np.asarray(drops, bool)
    if len(drops) < 2:
        raise ThresherError("one choice alone cannot be compared", "give two or more")
    overlaps, expected = [], []
    for a, b in combinations(drops, 2):
        either = (a | b).sum()
        overlaps.append((a & b).sum() / either if either else 1.0)
        # Of random sets the share p·q lies in both and p + q − p·q in either.
        p, q = a.mean(), b.mean()
        expected.append(p * q / (p + q - p * q) if p + q > 0 else 1.0)
    return Stability(
        votes=drops.mean(axis=0).astype(np.float32),
        jaccard=float(np.mean(overlaps)),
        expected=float(np.mean(expected)),
        lowest=float(np.min(overlaps)),
    )


@dataclass
class VotedNetworkFilter(Filter):
    """The network filter `votes` times, and if given for each of several perplexities and
    networks; the majority decides.

    The first vote is the ordinary map, which starts from the principal components; the others
    start from random clouds, since seeds hardly matter otherwise.

    With a share to drop, the samples with the most votes go, the mean score settling ties, so
    that the share is met; otherwise those that more than half of the votes drop.
    """

    name: ClassVar[str] = "network"

    base: NetworkFilter = field(default_factory=NetworkFilter)
    votes: int = 5
    """Seeds: base.seed, base.seed + 1, …"""
    perplexities: Sequence[float] = ()
    """Perplexities to vote with as well; empty: the base's alone."""
    others: Sequence[np.ndarray] = field(default=(), repr=False)
    """Features (n, d) of further networks that vote as well."""

    def _fit(self, samples: Samples) -> None:
        if self.votes < 1:
            raise ThresherError(f"{self.votes} votes decide nothing", "give at least 2")
        found: list[NetworkFilter] = []
        for features in (samples.need_features(), *self.others):
            seen = replace(samples, features=features)
            for perplexity in self.perplexities or (self.base.perplexity,):
                for vote in range(self.votes):
                    one = replace(self.base, seed=self.base.seed + vote, perplexity=perplexity)
                    found.append((replace(one, start="random") if vote else one).fit(seen))
        if len(found) < 2:
            raise ThresherError("one vote alone decides nothing", "give `--votes 2` or more")
        agree = stability(np.stack([~one.keep_ for one in found]))
        score = np.stack([one.score_ for one in found]).mean(axis=0, dtype=np.float64)
        if self.base.drop is not None:
            order = np.lexsort((score, agree.votes))
            dropped = np.zeros(len(samples), bool)
            # Small classes are kept whole by every vote and must stay so.
            order = order[~_always_kept(found)[order]]
            count = min(round(self.base.drop * len(samples)), len(order))
            dropped[order[len(order) - count :]] = True
        else:
            dropped = agree.votes > 0.5
        self.keep_, self.votes_ = ~dropped, agree.votes
        self.score_ = score.astype(np.float32)
        first = found[0]
        self.x_, self.y_, self.cluster_ = first.x_, first.y_, first.cluster_
        self.reason_ = [
            f"{agree.votes[row] * len(found):.0f} of {len(found)} votes"
            if dropped[row]
            else (first.reason_[row] if first.keep_[row] else "")
            for row in range(len(samples))
        ]
        self.report_.update(first.report_)
        self.report_["stability"] = {"votes": len(found), **agree.report()}
        self.report_["by_vote"] = [
            {
                "seed": one.seed,
                "perplexity": one.perplexity,
                "dropped": int((~one.keep_).sum()),
                "eps": one.report_["eps"],
                "kl": one.report_["kl"],
            }
            for one in found
        ]
        self.warnings_ += first.warnings_
        if agree.noisy:
            self.warnings_.append(
                f"the votes hardly agree (Jaccard {agree.jaccard:.2f}, random choices would have "
                f"{agree.expected:.2f}): this filter is mostly noise here"
            )
        for one in found:
            for stage, spent in one.seconds_.items():
                if stage != "total":
                    self.seconds_[stage] = self.seconds_.get(stage, 0.0) + spent

    def settings(self) -> dict[str, object]:
        more = {"votes": self.votes, "perplexities": list(self.perplexities)}
        return {**self.base.settings(), **more, "networks": 1 + len(self.others)}


def _always_kept(found: Sequence[NetworkFilter]) -> np.ndarray:
    return np.all([one.score_ == 0 for one in found], axis=0)
