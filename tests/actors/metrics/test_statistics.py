"""What is counted for a batch, and what is not."""

from __future__ import annotations

import trio

from actors.mail.messages import BatchDone, Execute, InstanceAddress
from actors.mail.reply_slot import Reply
from actors.metrics.statistics import FailureReason, VersionStatistics
from protocol.errors import Cancelled, Internal
from protocol.messages import InferenceResponse
from tests.actors.fakes import TIMING, Caller

INSTANCE = InstanceAddress("m_0", trio.open_memory_channel[Execute](1)[0])
RESPONSE = InferenceResponse("m", 1, [])


def test_a_batch_counts_once_and_each_of_its_requests_gets_the_batch_times() -> None:
    statistics = VersionStatistics()
    batch = [Caller(2, arrival=1.0).item, Caller(1, arrival=2.0).item]
    statistics.count_batch(BatchDone(INSTANCE, Execute(batch), batch, [RESPONSE, RESPONSE], 3.0, TIMING), now=5.0)
    counted = statistics.frozen("m", 1)
    assert (counted.inference_count, counted.execution_count) == (3, 1)
    assert (counted.inference_stats.queue.count, counted.inference_stats.queue.ns) == (2, 3_000_000_000)
    assert (counted.inference_stats.success.count, counted.inference_stats.success.ns) == (2, 7_000_000_000)
    assert (counted.inference_stats.compute_output.count, counted.inference_stats.compute_output.ns) == (2, 6)
    (by_size,) = counted.batch_stats
    assert (by_size.batch_size, by_size.compute_output.count, by_size.compute_output.ns) == (3, 1, 3)


def test_failures_are_counted_by_reason_and_the_abandoned_only_once() -> None:
    statistics = VersionStatistics()
    gone = Caller()
    gone.item.is_cancelled = True
    batch = [Caller().item, Caller().item, gone.item]
    replies: list[Reply] = [Internal("no"), Cancelled("stopped"), RESPONSE]
    statistics.count_batch(BatchDone(INSTANCE, Execute(batch), batch, replies, 0.0, None), now=1.0)
    assert statistics.failures == {
        FailureReason.REJECTED: 0,
        FailureReason.CANCELED: 1,
        FailureReason.BACKEND: 1,
        FailureReason.OTHER: 0,
    }
    counted = statistics.frozen("m", 1)
    assert (counted.inference_stats.fail.count, counted.inference_stats.fail.ns) == (2, 2_000_000_000)
    assert (counted.execution_count, counted.inference_count, counted.batch_stats) == (0, 0, ())
