import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gloo_ranks import run_ranks
from thresher.scaling.pipeline import MEGA, Gradient, HorovodQueue, Timeline, buckets, ddp, horovod

GRADIENTS = [Gradient(4 * MEGA, 0.01 * (k + 1)) for k in range(10)]


def queued(
    gradients: list[Gradient], workers: int, cycle_s: float = 1e-3, fusion_mb: int = 128
) -> Timeline:
    """Horovod's time line with messages of 1 ms and a latency of 10 µs."""
    queue = HorovodQueue(cycle_s, fusion_mb * MEGA)
    return horovod(gradients, 0.1, lambda _: 1e-3, queue, queue.negotiation_s(workers, 1e-5))


def test_buckets_hold_every_byte_once_and_are_full() -> None:
    grouped = buckets(GRADIENTS, 12 * MEGA)
    assert sum(b.bytes for b in grouped) == 40 * MEGA
    assert [b.bytes / MEGA for b in grouped] == [12, 12, 12, 4]
    assert grouped[0].ready_s == pytest.approx(0.03)
    assert grouped[1].ready_s == pytest.approx(0.06)


def test_the_first_bucket_of_torchs_own_sizes_is_small() -> None:
    grouped = buckets(GRADIENTS, 12 * MEGA, MEGA)
    assert sum(b.bytes for b in grouped) == 40 * MEGA
    assert [b.bytes / MEGA for b in grouped] == [4, 12, 12, 12]
    assert grouped[1].ready_s == pytest.approx(0.04)


def _sent_by_ddp(rank: int, world: int, bucket_mb: float) -> tuple[list[int], list[int]]:
    """Bytes of the gradients, the last first, and of the buckets that DDP makes of them."""
    net = nn.Sequential(nn.Linear(512, 256, bias=False))
    net.extend(nn.Linear(256, 512) if k % 2 else nn.Linear(512, 256) for k in range(1, 12))
    ddp_net = DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    sent: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.buffer().nbytes)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp_net.register_comm_hook(None, hook)
    for _ in range(2):  # the second step has the final buckets
        sent.clear()
        ddp_net(torch.ones(1, 512)).sum().backward()
    return [p.nbytes for p in reversed(list(net.parameters()))], sent


@pytest.mark.xdist_group("ranks")
def test_buckets_are_those_that_ddp_sends() -> None:
    """With the size given, as training does; torch's own default has a first bucket of 1 MiB."""
    ((gradients, sent),) = run_ranks(1, _sent_by_ddp, 2.5)
    ready = [Gradient(size, 0.0) for size in gradients]
    assert len(sent) > 2
    assert [bucket.bytes for bucket in buckets(ready, 2.5 * MEGA)] == sent


def test_fast_messages_hide_but_for_the_last() -> None:
    line = ddp(GRADIENTS, 0.1, lambda size: 1e-3, 12 * MEGA)
    assert line.exposed_s == pytest.approx(1e-3)
    assert line.communication_s == pytest.approx(4e-3)


def test_slow_messages_queue_behind_each_other() -> None:
    line = ddp(GRADIENTS, 0.1, lambda size: 0.05, 12 * MEGA)
    # Begin at 0.03; four of 0.05 s one after another end at 0.23.
    assert line.exposed_s == pytest.approx(0.13)
    begins = [span.begin_s for span in line.spans]
    assert all(b - a >= 0.05 - 1e-12 for a, b in itertools.pairwise(begins))
    # With a small first one, at 0.01.
    assert ddp(GRADIENTS, 0.1, lambda size: 0.05, 12 * MEGA, MEGA).exposed_s == pytest.approx(0.11)


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
