import itertools

import pytest

from thresher.scaling.pipeline import MEGA, Gradient, HorovodQueue, Timeline, buckets, ddp, horovod

GRADIENTS = [Gradient(4 * MEGA, 0.01 * (k + 1)) for k in range(10)]


def queued(
    gradients: list[Gradient], workers: int, cycle_s: float = 1e-3, fusion_mb: int = 128
) -> Timeline:
    """Horovod's time line with messages of 1 ms and a latency of 10 µs."""
    queue = HorovodQueue(cycle_s, fusion_mb * MEGA)
    return horovod(gradients, 0.1, lambda _: 1e-3, queue, queue.negotiation_s(workers, 1e-5))


def test_buckets_hold_every_byte_once_and_the_first_is_small() -> None:
    grouped = buckets(GRADIENTS, 12 * MEGA)
    assert sum(b.bytes for b in grouped) == 40 * MEGA
    assert [b.bytes / MEGA for b in grouped] == [4, 12, 12, 12]
    assert grouped[1].ready_s == pytest.approx(0.04)


def test_fast_messages_hide_but_for_the_last() -> None:
    line = ddp(GRADIENTS, 0.1, lambda size: 1e-3, 12 * MEGA)
    assert line.exposed_s == pytest.approx(1e-3)
    assert line.communication_s == pytest.approx(4e-3)


def test_slow_messages_queue_behind_each_other() -> None:
    line = ddp(GRADIENTS, 0.1, lambda size: 0.05, 12 * MEGA)
    # Begin at 0.01; four of 0.05 s one after another end at 0.21.
    assert line.exposed_s == pytest.approx(0.11)
    begins = [span.begin_s for span in line.spans]
    assert all(b - a >= 0.05 - 1e-12 for a, b in itertools.pairwise(begins))


def test_horovod_reduces_every_byte_and_negotiates_before() -> None:
    line = queued(GRADIENTS, 16, cycle_s=5e-3)
    reduced = [span for span in line.spans if span.kind == "allreduce"]
    assert sum(span.bytes for span in reduced) == 40 * MEGA
    rounds = [span for span in line.spans if span.kind == "negotiate"]
    assert len(rounds) == len(reduced)
    for agreed, message in zip(rounds, reduced, strict=True):
        assert message.begin_s >= agreed.end_s


def test_horovod_fuses_what_waits_up_to_its_buffer() -> None:
    at_once = [Gradient(4 * MEGA, 0.0)] * 10
    line = queued(at_once, 16, fusion_mb=16)
    sizes = [span.bytes / MEGA for span in line.spans if span.kind == "allreduce"]
    assert sizes == [16, 16, 8]


def test_a_longer_cycle_makes_fewer_messages_and_negotiation_grows_with_workers() -> None:
    def messages(cycle: float, workers: int) -> tuple[int, float]:
        line = queued(GRADIENTS, workers, cycle)
        return len(line.spans), line.end_s

    assert messages(0.05, 16)[0] < messages(1e-3, 16)[0]
    assert messages(1e-3, 4096)[1] > messages(1e-3, 16)[1]
