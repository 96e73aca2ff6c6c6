"""Observations from what a server tells."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from trioton.analyze.live.observation import Snapshot, arrivals_of, bucket_percentile, observe, snapshot_of
from trioton.analyze.live.traces import read_traces
from trioton.flags.fields import UsageError

STATISTICS = {
    "model_stats": [
        {
            "name": "m",
            "version": version,
            "inference_count": "30",
            "execution_count": "10",
            "inference_stats": {
                "success": {"count": "20", "ns": "200000000"},
                "fail": {"count": "1"},
                "queue": {"count": "20", "ns": "80000000"},
            },
            "batch_stats": [
                {
                    "batch_size": "3",
                    "compute_input": {"count": "10", "ns": "10000000"},
                    "compute_infer": {"count": "10", "ns": "50000000"},
                    "compute_output": {"count": "10", "ns": "0"},
                }
            ],
        }
        for version in ("1", "2")
    ]
}
METRICS = """
# HELP nv_inference_request_duration_histogram_us of
nv_inference_request_duration_histogram_us_bucket{model="m",version="1",le="10000"} 10
nv_inference_request_duration_histogram_us_bucket{model="m",version="2",le="10000"} 10
nv_inference_request_duration_histogram_us_bucket{model="m",version="1",le="+Inf"} 20
nv_inference_request_duration_histogram_us_bucket{model="m",version="2",le="+Inf"} 20
nv_inference_request_duration_histogram_us_bucket{model="other",version="1",le="+Inf"} 999
nv_cpu_utilization 0.25
broken line
nv_inference_request_summary_us{model="m",version="1",quantile="0.99"} NaN
"""


def test_versions_are_added_up() -> None:
    found = snapshot_of(5.0, STATISTICS, METRICS, "m")
    assert (found.succeeded, found.failed, found.inferences, found.executions) == (40, 2, 60, 20)
    assert found.batches == {3: (20, 120_000_000)}
    assert found.buckets == {0.01: 20, math.inf: 40}
    assert found.processor_use == 0.25
    assert found.summary_p99 is None


def test_differences() -> None:
    seen = observe([Snapshot(0.0), snapshot_of(10.0, STATISTICS, METRICS, "m")])
    assert (seen.rate, seen.requests, seen.failed) == (4.0, 40, 2)
    assert seen.rows == 1.5
    assert seen.mean_batch == 3.0
    assert seen.mean_latency == pytest.approx(0.010)
    assert seen.mean_queue == pytest.approx(0.004)
    assert seen.times is not None
    [(rows, seconds)] = seen.times.points
    assert rows == 3
    assert seconds == pytest.approx(0.006)


def test_a_server_that_tells_nothing() -> None:
    seen = observe([snapshot_of(0.0, {}, "", "m"), snapshot_of(1.0, {}, "", "m")])
    assert (seen.requests, seen.times, seen.p99, seen.processor_use) == (0, None, None, None)


def test_percentiles_of_buckets() -> None:
    found = bucket_percentile({0.01: 50, 0.1: 100, math.inf: 100}, 0.99)
    assert found is not None
    assert 0.09 < found.value < 0.1
    assert (found.low, found.high) == (0.01, 0.1)
    assert found.is_coarse
    beyond = bucket_percentile({0.01: 50, math.inf: 100}, 0.99)
    assert beyond is not None
    assert (beyond.value, beyond.high) == (0.01, math.inf)
    assert bucket_percentile({}, 0.99) is None
    assert bucket_percentile({0.1: 0, math.inf: 0}, 0.99) is None


def test_bursts_are_told_from_independent_clients() -> None:
    draw = random.Random(1)
    even, bursts = [Snapshot(0.0)], [Snapshot(0.0)]
    for step in range(1, 200):
        arrived = sum(draw.random() < 0.05 for _ in range(1000))  # 50 of a binomial distribution
        even.append(Snapshot(step * 0.5, succeeded=even[-1].succeeded + arrived))
        bursts.append(Snapshot(step * 0.5, succeeded=bursts[-1].succeeded + (250 if step % 5 == 0 else 0)))
    assert observe(even).burstiness == pytest.approx(1.0, abs=0.35)
    assert observe(bursts).burstiness > 10


def test_arrivals_are_spread_within_each_span() -> None:
    found = arrivals_of([Snapshot(10.0), Snapshot(11.0, succeeded=2), Snapshot(12.0, succeeded=2, failed=1)])
    assert found == [0.25, 0.75, 1.5]
    assert len(arrivals_of([Snapshot(0.0), Snapshot(1.0, succeeded=10**9)], most=100)) == 100


def test_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        """[{"id":1,"model_name":"m"},{"id":2,"model_name":"other"},
        {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":1000000000},{"name":"REQUEST_START","ns":1100000000}]},
        {"id":1,"timestamps":[{"name":"REQUEST_END","ns":1350000000}]},
        {"id":2,"timestamps":[{"name":"REQUEST_START","ns":1},{"name":"REQUEST_END","ns":2}]},
        {"id":3,"model_name":"m"},{"id":3,"timestamps":[{"name":"REQUEST_START","ns":7}]}]"""
    )
    found = read_traces(path, "m")
    assert found.arrivals == (1.0,)
    assert list(found.latencies) == pytest.approx([0.25])
    path.write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_traces(path, "m")
