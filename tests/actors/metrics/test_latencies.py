"""The spread of latencies: nothing is lost between being counted and being shown, and batches count for all in them."""

from __future__ import annotations

import pytest

from actors.metrics.histogram import HistogramSnapshot
from actors.metrics.latencies import KEPT, LatencySummaries, all_histograms
from backends.interface import BatchTiming

TIMING = BatchTiming(60_000, 300_000, 600_000)


def buckets(snapshot: HistogramSnapshot) -> dict[float, int]:
    """By upper bound, without the empty ones; beyond the last it is infinity."""
    counts = [after - before for before, after in zip((0, *snapshot.cumulative), snapshot.cumulative, strict=False)]
    return {bound: count for bound, count in zip((*snapshot.bounds, float("inf")), counts, strict=True) if count}


@pytest.mark.parametrize("requests", [1, KEPT // 2, 3 * KEPT + 1])
def test_every_reply_is_shown_however_many_are_kept(requests: int) -> None:
    histograms = all_histograms()
    for _ in range(requests):
        histograms.count_replies((50e-6,), (0.2,))
    shown = histograms.frozen()
    assert buckets(shown["queue"]) == {50.0: requests}, "a value on a bound belongs to it"
    assert buckets(shown["request"]) == {250_000.0: requests}
    assert buckets(shown["first_response"]) == {500.0: requests}
    assert shown["request"].total == pytest.approx(200_000 * requests)
    assert histograms.frozen() == shown, "counted once"


@pytest.mark.parametrize("batches", [1, KEPT])
def test_a_batch_counts_for_each_of_its_requests(batches: int) -> None:
    histograms = all_histograms()
    for _ in range(batches):
        histograms.count_execution(TIMING, 3)
    shown = histograms.frozen()
    assert buckets(shown["compute_input"]) == {100.0: 3 * batches}
    assert buckets(shown["compute_infer"]) == {500.0: 3 * batches}
    assert buckets(shown["compute_output"]) == {1000.0: 3 * batches}
    assert shown["compute_output"].total == pytest.approx(1800 * batches)


def test_a_stream_has_a_first_response_or_none() -> None:
    histograms = all_histograms()
    histograms.count_stream(100.0, None)
    histograms.count_stream(2.0, 1.0)
    histograms.count_queued(0.001)
    shown = histograms.frozen()
    assert buckets(shown["request"]) == {2.5e6: 1, float("inf"): 1}
    assert buckets(shown["first_response"]) == {2000.0: 1}
    assert buckets(shown["queue"]) == {1000.0: 1}


def test_summaries_see_the_same() -> None:
    summaries = LatencySummaries((0.5,))
    summaries.count_replies((0.001, 0.003), (0.002, 0.004))
    summaries.count_execution(TIMING, 2)
    summaries.count_queued(0.001)
    summaries.count_stream(0.006, 0.001)
    shown = summaries.frozen()
    assert shown["queue"].count == shown["request"].count == 3
    assert shown["queue"].total == pytest.approx(5000)
    assert shown["request"].total == pytest.approx(12_000)
    assert (shown["compute_infer"].count, shown["compute_infer"].quantiles) == (2, ((0.5, 300.0),))
    assert shown["cache_hit"].count == 0
