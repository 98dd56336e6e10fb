"""What a run shows: its settings before it starts, and its progress."""

import contextlib
import logging
from collections.abc import Iterator

from thresher.progress import Bar, bar
from thresher.training.config import TrainConfig
from thresher.training.resolved import Resolved, tiny_last_batch

logger = logging.getLogger(__name__)


def show_settings(config: TrainConfig, resolved: Resolved, device: object) -> None:
    """Log every number that follows from the configuration, and a warning about tiny batches."""
    logger.info("training %s on %s (%s)\n%s", config.model, config.data, device, resolved.table())
    few = tiny_last_batch(resolved)
    if few:
        logger.warning(
            "the last batch of each epoch holds %d of %s samples and is trained on at the full "
            "rate; another batch size avoids that",
            few,
            f"{resolved.global_batch:,}",
        )


@contextlib.contextmanager
def progress_bar(label: str, steps: int, shown: bool) -> Iterator[Bar]:
    """Show a progress bar while the block runs, unless `shown` is False."""
    if not shown:
        yield _NoBar()
        return
    with bar(label, steps, "steps") as visible:
        yield visible


class _NoBar:
    def advance(self, by: float = 1) -> None:
        pass

    def note(self, text: str) -> None:
        pass
