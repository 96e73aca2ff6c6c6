"""Observation of a running model: rates, times of batches, latency, from differences of what it tells. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pvariance
from typing import Any

from trioton.analyze.live.metrics_text import samples
from trioton.analyze.search.service_times import ServiceTimes, service_times

_HISTOGRAM = "nv_inference_request_duration_histogram_us_bucket"
_SUMMARY = "nv_inference_request_summary_us"
_CPU = "nv_cpu_utilization"
_STAGES = ("compute_input", "compute_infer", "compute_output")
_FEW_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a server has told at a moment: seconds of any clock; counts since its start, nanoseconds.

    Attributes:
        batches: by size, how many there were and how long they took.
        buckets: of the histogram of request durations: counts by upper end in seconds.
    """

    at: float
    succeeded: int = 0
    failed: int = 0
    inferences: int = 0
    executions: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    batches: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    buckets: Mapping[float, int] = field(default_factory=dict)
    summary_p99: float | None = None
    processor_use: float | None = None


def snapshot_of(at: float, statistics: Mapping[str, Any], metrics: str, model: str) -> Snapshot:
    """From the answers of the statistics endpoint and `/metrics`; versions are added up."""
    counts = dict.fromkeys(("succeeded", "failed", "inferences", "executions", "request_ns", "queue_ns"), 0)
    batches: dict[int, tuple[int, int]] = {}
    for version in statistics.get("model_stats", ()):
        stats = version.get("inference_stats", {})
        counts["succeeded"] += _number(stats, "success", "count")
        counts["failed"] += _number(stats, "fail", "count")
        counts["inferences"] += int(version.get("inference_count", 0))
        counts["executions"] += int(version.get("execution_count", 0))
        counts["request_ns"] += _number(stats, "success", "ns")
        counts["queue_ns"] += _number(stats, "queue", "ns")
        for each in version.get("batch_stats", ()):
            size = int(each.get("batch_size", 0))
            before = batches.get(size, (0, 0))
            took = sum(_number(each, stage, "ns") for stage in _STAGES)
            batches[size] = (before[0] + _number(each, "compute_infer", "count"), before[1] + took)
    buckets: dict[float, int] = {}
    summary: float | None = None
    use: float | None = None
    for sample in samples(metrics, model):
        if sample.name == _HISTOGRAM and "le" in sample.labels:
            end = float(sample.labels["le"]) / 1e6
            buckets[end] = buckets.get(end, 0) + int(sample.value)
        elif sample.name == _SUMMARY and sample.labels.get("quantile") == "0.99" and math.isfinite(sample.value):
            summary = max(summary or 0.0, sample.value / 1e6)
        elif sample.name == _CPU:
            use = sample.value
    return Snapshot(at, **counts, batches=batches, buckets=buckets, summary_p99=summary, processor_use=use)


def _number(holder: Mapping[str, Any], name: str, key: str) -> int:
    return int(holder.get(name, {}).get(key, 0))


@dataclass(frozen=True, slots=True)
class Percentile:
    """Seconds, with the ends between which it certainly lies."""

    value: float
    low: float
    high: float
    source: str

    @property
    def is_coarse(self) -> bool:
        return self.low <= 0 or self.high / self.low > 2


@dataclass(frozen=True, slots=True)
class Observation:
    """A model under its own load, over `seconds`.

    Attributes:
        rate: requests a second; `rows` is how many inferences each had.
        mean_latency: seconds in the server, `mean_queue` of it in the queue.
        p99: None where nothing tells of it.
        times: of batches, by size.
        burstiness: the variance of requests in a span over their mean; 1 for independent clients.
        processor_use: of the machine, from 0 to 1; None where it is not told.
    """

    seconds: float
    requests: int
    failed: int
    rate: float
    rows: float
    mean_batch: float
    mean_latency: float
    mean_queue: float
    p99: Percentile | None
    times: ServiceTimes | None
    batch_counts: Mapping[int, int]
    burstiness: float
    processor_use: float | None


def observe(snapshots: Sequence[Snapshot], latencies: Sequence[float] = ()) -> Observation:
    """Over at least two snapshots; `latencies` are those of traces, if there are any."""
    first, last = snapshots[0], snapshots[-1]
    seconds = max(last.at - first.at, 1e-9)
    requests = last.succeeded - first.succeeded
    executions = last.executions - first.executions
    inferences = last.inferences - first.inferences
    counts, times = _batches(first, last)
    uses = [each.processor_use for each in snapshots if each.processor_use is not None]
    return Observation(
        seconds=seconds,
        requests=requests,
        failed=last.failed - first.failed,
        rate=requests / seconds,
        rows=inferences / requests if requests and inferences else 1.0,
        mean_batch=inferences / executions if executions else 0.0,
        mean_latency=(last.request_ns - first.request_ns) / requests / 1e9 if requests else 0.0,
        mean_queue=(last.queue_ns - first.queue_ns) / requests / 1e9 if requests else 0.0,
        p99=_p99(first, last, latencies),
        times=times,
        batch_counts=counts,
        burstiness=_burstiness(snapshots),
        processor_use=fmean(uses) if uses else None,
    )


def _batches(first: Snapshot, last: Snapshot) -> tuple[dict[int, int], ServiceTimes | None]:
    """Counts of the window, and mean times; a size that was rare in it is taken from all since the server's start."""
    counts: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for size, (count, took) in last.batches.items():
        before = first.batches.get(size, (0, 0))
        if size < 1 or not count:
            continue
        counts[size] = count - before[0]
        is_rare = counts[size] < _FEW_BATCHES
        seconds[size] = (took if is_rare else took - before[1]) / (count if is_rare else counts[size]) / 1e9
    return counts, service_times(seconds) if seconds else None


def _p99(first: Snapshot, last: Snapshot, latencies: Sequence[float]) -> Percentile | None:
    if len(latencies) >= 100:
        ordered = sorted(latencies)
        value = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
        return Percentile(value, value, value, "traces")
    if last.summary_p99:
        return Percentile(last.summary_p99, last.summary_p99, last.summary_p99, "summary")
    return bucket_percentile({end: count - first.buckets.get(end, 0) for end, count in last.buckets.items()}, 0.99)


def bucket_percentile(cumulative: Mapping[float, int], share: float) -> Percentile | None:
    """Within the bucket that holds it, on a logarithmic scale; the last bucket has no upper end."""
    ends = sorted(cumulative)
    if not ends or cumulative[ends[-1]] < 1:
        return None
    rank = share * cumulative[ends[-1]]
    low, below = 0.0, 0
    for end in ends:
        if cumulative[end] >= rank:
            break
        low, below = end, cumulative[end]
    inside = (rank - below) / max(1, cumulative[end] - below)
    if math.isinf(end):
        return Percentile(low, low, math.inf, "histogram")
    floor = low or end / 10
    return Percentile(floor * (end / floor) ** inside, low, end, "histogram")


def _burstiness(snapshots: Sequence[Snapshot]) -> float:
    """By the requests that ended between snapshots, scaled to spans of one length."""
    rates, gaps = [], []
    for before, after in itertools.pairwise(snapshots):
        gap = after.at - before.at
        if gap > 0:
            gaps.append(gap)
            rates.append((after.succeeded - before.succeeded) / gap)
    if len(rates) < 10 or fmean(rates) <= 0:
        return 1.0
    span = fmean(gaps)
    return min(50.0, max(0.2, pvariance(rates) * span / fmean(rates)))


def arrivals_of(snapshots: Sequence[Snapshot], most: int = 200_000) -> list[float]:
    """About when requests came, in seconds from the first snapshot: evenly within each span."""
    found: list[float] = []
    start = snapshots[0].at
    for before, after in itertools.pairwise(snapshots):
        count = after.succeeded + after.failed - before.succeeded - before.failed
        gap = after.at - before.at
        found += [before.at - start + gap * (index + 0.5) / count for index in range(min(count, most - len(found)))]
    return found
