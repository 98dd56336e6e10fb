"""A batch size that changes between epochs: `double@10,20`, `0:64,10:256`, or a file of the latter.

Within an epoch it is constant, so that it is a function of the epoch alone: the same on any number
of workers and after a restart. With `noise` it is chosen while training (see `batch_growth`).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from thresher.csv_table import read_csv_table
from thresher.errors import InvalidValueError, NotFoundError
from thresher.training.config import TrainConfig

Phases = tuple[tuple[int, int], ...]
"""(first epoch, global batch), ascending; the first begins at epoch 0."""
DOUBLE = "double@"
NOISE = "noise"


def batch_phases(config: TrainConfig, batch: int) -> Phases:
    """Return the phases of a run whose first batch is `batch`; one without a schedule or by noise.

    Raises:
        InvalidValueError: The schedule is not understood.
    """
    text = config.batch_schedule
    if text is None or text == NOISE:
        return ((0, batch),)
    if text.startswith(DOUBLE):
        epochs = [_whole(word, text) for word in text.removeprefix(DOUBLE).split(",")]
        phases = [(0, batch)]
        phases += [(epoch, batch * 2 ** (n + 1)) for n, epoch in enumerate(epochs)]
    elif ":" in text and not Path(text).is_file():
        pairs = [pair.split(":") for pair in text.split(",")]
        if any(len(pair) != 2 for pair in pairs):
            raise _unknown(text)
        phases = [(_whole(epoch, text), _whole(size, text)) for epoch, size in pairs]
    else:
        phases = _read(Path(text))
    begins = [epoch for epoch, _ in phases]
    if begins != sorted(set(begins)):
        what = f'batch_schedule must have ascending epochs above 0, got "{text}"'
        raise InvalidValueError(what, "", "batch_schedule")
    if min(size for _, size in phases) < 1:
        raise _unknown(text)
    if phases[0] != (0, batch):
        what = f"batch_schedule must begin with epoch 0 and `batch_size`, 0:{batch}"
        raise InvalidValueError(f"{what}, got {phases[0][0]}:{phases[0][1]}", "", "batch_schedule")
    return tuple(phases)


def batch_at(phases: Sequence[Sequence[int]], epoch: int) -> int:
    """Return the global batch of an epoch."""
    return [batch for begin, batch in phases if begin <= epoch][-1]


def with_schedule_inline(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the content of a schedule's file in place of its path.

    A run then does not depend on a file that may change before it resumes.
    """
    text = config.batch_schedule
    if text is None or text == NOISE or text.startswith(DOUBLE) or not Path(text).is_file():
        return config
    phases = batch_phases(config, config.batch_size)
    return replace(config, batch_schedule=",".join(f"{epoch}:{size}" for epoch, size in phases))


def _read(path: Path) -> list[tuple[int, int]]:
    try:
        table = read_csv_table(path)
    except NotFoundError:
        raise _unknown(str(path)) from None
    if not table.rows or not {"epoch", "batch"} <= set(table.head):
        raise InvalidValueError(f"{path} is not a CSV file with columns epoch and batch")
    epoch, batch = (table.head.index(name) for name in ("epoch", "batch"))
    where = f"{path}"
    return [(_whole(row[epoch], where), _whole(row[batch], where)) for row in table.rows]


def _whole(word: str, text: str) -> int:
    if not word.strip().isdecimal() or len(word) > 12:
        raise _unknown(text)
    return int(word)


def _unknown(text: str) -> InvalidValueError:
    what = f'batch_schedule cannot be "{text}"'
    fix = "write double@EPOCHS (double@10,20), EPOCH:BATCH pairs (0:64,10:256), noise or a CSV file"
    return InvalidValueError(what, fix, "batch_schedule")
