"""What a run says about settings that are allowed but hardly meant."""

from thresher.training.config import TrainConfig
from thresher.training.record import late_target
from thresher.training.resolved import Resolved, tiny_rest
from thresher.training.schedules import idle_rule, unreached


def remarks(config: TrainConfig, resolved: Resolved, epochs: float | None) -> list[str]:
    """Return a sentence for each such setting; `epochs` is None if they are not known yet."""
    options = config.to_dict()
    sentences = [
        idle_rule(options),
        late_target(options, epochs),
        *unreached(config, config.epochs, resolved.global_batch),
        unchanged_batch(resolved),
        *(tiny_last_batch(few, batch) for few, batch in tiny_last_batches(resolved)),
    ]
    return [sentence for sentence in sentences if sentence]


def unchanged_batch(resolved: Resolved) -> str:
    """Return a sentence if the batch schedule of a run changes nothing, else ""."""
    if resolved.largest_batch == resolved.global_batch:
        return (
            f"the batch does not grow, because twice {resolved.global_batch:,} is more than "
            "max_batch or than the training samples"
        )
    if resolved.batch_phases and resolved.batch_phases[1][0] >= resolved.passes:
        return "the batch does not change, because batch_schedule begins after the end of the run"
    return ""


def tiny_last_batch(few: int, batch: int) -> str:
    """Return the sentence on epochs whose last batch has few samples."""
    return (
        f"the last batch of each epoch holds {few} of {batch:,} samples and is trained on at the "
        "full rate; `drop_last` or another batch size avoids that"
    )


def tiny_last_batches(resolved: Resolved) -> list[tuple[int, int]]:
    """Return (samples, batch) of epochs whose last batch has too few samples, by global batch.

    A step on so few samples at the full rate may undo an epoch's work: 1 of 718 took digits from
    81 to 16 %. Of a batch that grows with the noise scale, only the first one is known; the
    trainer looks at the others when the batch grows.
    """
    ended = [batch for begin, batch in resolved.batch_phases if begin < int(resolved.passes)]
    rests = {batch: tiny_rest(resolved, batch) for batch in (resolved.global_batch, *ended)}
    return [(rest, batch) for batch, rest in rests.items() if rest]
