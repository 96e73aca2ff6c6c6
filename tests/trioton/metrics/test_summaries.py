"""Latency summaries in the metrics text, read back by Prometheus' own parser."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from actors.metrics.latencies import LatencySummaries
from actors.metrics.statistics import VersionSnapshot, VersionStatistics
from protocol.core import ModelStatistics
from tests.trioton.metrics.test_histograms import labels, samples
from trioton.gpus import Gpus
from trioton.metrics.metrics import Metrics
from trioton.metrics.model_families import SUMMARIES


def snapshot(statistics: VersionStatistics, *, has_cache: bool = False) -> VersionSnapshot:
    assert statistics.summaries is not None
    return VersionSnapshot(
        "m", 1, {}, ModelStatistics("m", "1"), 0, 0.5, {}, summaries=statistics.summaries.frozen(), has_cache=has_cache
    )


def counted() -> VersionStatistics:
    statistics = VersionStatistics(summaries=LatencySummaries((0.5, 0.99)))
    for seconds in (0.001, 0.002, 0.003):
        statistics.count_cache_hit(seconds)
    statistics.count_cache_miss(0.004)
    return statistics


def test_quantiles_sum_and_count() -> None:
    found = samples(Metrics(lambda: [snapshot(counted())], interval=1.0))
    name = "nv_inference_request_summary_us"
    assert found[name, labels(model="m", version="1", quantile="0.5")] == 2000
    assert found[name, labels(model="m", version="1", quantile="0.99")] == 3000
    assert found[f"{name}_sum", labels(model="m", version="1")] == pytest.approx(6000)
    assert found[f"{name}_count", labels(model="m", version="1")] == 3
    compute = found["nv_inference_compute_infer_summary_us", labels(model="m", version="1", quantile="0.5")]
    assert math.isnan(compute), "nothing was computed"


@pytest.mark.parametrize("has_cache", [False, True])
def test_which_summaries_depends_on_the_cache(has_cache: bool) -> None:
    """With the cache on there is none of the whole duration, as in Triton."""
    found = {name for name, _ in samples(Metrics(lambda: [snapshot(counted(), has_cache=has_cache)], interval=1.0))}
    assert ("nv_inference_request_summary_us" in found) is not has_cache
    assert ("nv_cache_hit_summary_per_model" in found) is has_cache
    assert ("nv_cache_miss_summary_per_model" in found) is has_cache
    assert "nv_inference_queue_summary_us" in found


def test_no_summaries_by_default() -> None:
    assert VersionStatistics().summaries is None
    names = {name for name, _ in samples(Metrics(lambda: [plain()], interval=1.0))}
    assert not names & {family.name for family in SUMMARIES.values()}


def plain() -> VersionSnapshot:
    return VersionSnapshot("m", 1, {}, ModelStatistics("m", "1"), 0, 0.5, {})


def test_lost_traces_are_counted_and_the_machine_can_be_left_out() -> None:
    found = samples(Metrics(list, interval=1.0, lost_traces=lambda: 7, has_cpu=False))
    assert found["trioton_trace_lost_total", labels()] == 7
    assert not any(name.startswith("nv_cpu") for name, _ in found)


class OneGpu(Gpus):
    def uuid(self, device_id: int) -> str | None:
        return f"GPU-{device_id}"


def test_a_model_on_one_gpu_bears_its_label() -> None:
    snapshots = [replace(plain(), gpu=3), replace(plain(), model="cpu")]
    found = samples(Metrics(lambda: snapshots, interval=1.0, gpus=OneGpu(1.0)))
    assert ("nv_model_load_duration_secs", labels(model="m", version="1", gpu_uuid="GPU-3")) in found
    assert ("nv_model_load_duration_secs", labels(model="cpu", version="1")) in found
