"""One worker: nothing is exchanged."""

from thresher.training.exchange.base import GradientExchange


class AloneExchange(GradientExchange):
    """The exchange of a single worker, which has the whole gradient already."""
