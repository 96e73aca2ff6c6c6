"""The metric families of model versions.

Names and help texts of those that begin with `nv_` are Triton's (Triton, "Metrics").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from actors.metrics.statistics import VersionSnapshot
from trioton.metrics.families import Family


class ModelMetric(NamedTuple):
    """A metric with one value per model version."""

    family: Family
    value: Callable[[VersionSnapshot], float]


# Durations are kept in nanoseconds and shown in whole microseconds.
MODEL_METRICS: tuple[ModelMetric, ...] = (
    ModelMetric(
        Family("nv_inference_request_success", "counter", "Number of successful inference requests, all batch sizes"),
        lambda s: s.statistics.inference_stats.success.count,
    ),
    ModelMetric(
        Family("nv_inference_count", "counter", "Number of inferences performed (does not include cached requests)"),
        lambda s: s.statistics.inference_count,
    ),
    ModelMetric(
        Family(
            "nv_inference_exec_count",
            "counter",
            "Number of model executions performed (does not include cached requests)",
        ),
        lambda s: s.statistics.execution_count,
    ),
    ModelMetric(
        Family(
            "nv_inference_request_duration_us",
            "counter",
            "Cumulative inference request duration in microseconds (includes cached requests)",
        ),
        lambda s: s.statistics.inference_stats.success.ns // 1000,
    ),
    ModelMetric(
        Family(
            "nv_inference_queue_duration_us",
            "counter",
            "Cumulative inference queuing duration in microseconds (includes cached requests)",
        ),
        lambda s: s.statistics.inference_stats.queue.ns // 1000,
    ),
    ModelMetric(
        Family(
            "nv_inference_compute_input_duration_us",
            "counter",
            "Cumulative compute input duration in microseconds (does not include cached requests)",
        ),
        lambda s: s.statistics.inference_stats.compute_input.ns // 1000,
    ),
    ModelMetric(
        Family(
            "nv_inference_compute_infer_duration_us",
            "counter",
            "Cumulative compute inference duration in microseconds (does not include cached requests)",
        ),
        lambda s: s.statistics.inference_stats.compute_infer.ns // 1000,
    ),
    ModelMetric(
        Family(
            "nv_inference_compute_output_duration_us",
            "counter",
            "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        ),
        lambda s: s.statistics.inference_stats.compute_output.ns // 1000,
    ),
    ModelMetric(
        Family(
            "nv_inference_pending_request_count",
            "gauge",
            "Instantaneous number of pending requests awaiting execution per-model.",
        ),
        lambda s: s.pending_requests,
    ),
    ModelMetric(
        Family("nv_model_load_duration_secs", "gauge", "Model load time in seconds"),
        lambda s: round(s.load_seconds, 6),
    ),
)


# Shown only for models that use the response cache.
CACHE_METRICS: tuple[ModelMetric, ...] = (
    ModelMetric(
        Family("nv_cache_num_hits_per_model", "counter", "Number of cache hits per model"),
        lambda s: s.statistics.inference_stats.cache_hit.count,
    ),
    ModelMetric(
        Family("nv_cache_num_misses_per_model", "counter", "Number of cache misses per model"),
        lambda s: s.statistics.inference_stats.cache_miss.count,
    ),
    ModelMetric(
        Family("nv_cache_hit_duration_per_model", "counter", "Total cache hit duration per model, in microseconds"),
        lambda s: s.statistics.inference_stats.cache_hit.ns // 1000,
    ),
    ModelMetric(
        Family("nv_cache_miss_duration_per_model", "counter", "Total cache miss duration per model, in microseconds"),
        lambda s: s.statistics.inference_stats.cache_miss.ns // 1000,
    ),
)


# Histograms by the names that the snapshots give them.
HISTOGRAMS: dict[str, Family] = {
    "request": Family(
        "nv_inference_request_duration_histogram_us", "histogram", "Inference request duration in microseconds"
    ),
    "queue": Family(
        "nv_inference_queue_duration_histogram_us", "histogram", "Inference queuing duration in microseconds"
    ),
    "compute_input": Family(
        "nv_inference_compute_input_duration_histogram_us", "histogram", "Compute input duration in microseconds"
    ),
    "compute_infer": Family(
        "nv_inference_compute_infer_duration_histogram_us", "histogram", "Compute inference duration in microseconds"
    ),
    "compute_output": Family(
        "nv_inference_compute_output_duration_histogram_us", "histogram", "Compute output duration in microseconds"
    ),
    "first_response": Family(
        "nv_inference_first_response_histogram_ms",
        "histogram",
        "Duration from request to first response in milliseconds",
    ),
}


# Summaries by the names that the snapshots give them.
SUMMARIES: dict[str, Family] = {
    "request": Family(
        "nv_inference_request_summary_us",
        "summary",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    "queue": Family(
        "nv_inference_queue_summary_us",
        "summary",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    "compute_input": Family(
        "nv_inference_compute_input_summary_us",
        "summary",
        "Summary of compute input duration in microseconds (does not include cached requests)",
    ),
    "compute_infer": Family(
        "nv_inference_compute_infer_summary_us",
        "summary",
        "Summary of compute inference duration in microseconds (does not include cached requests)",
    ),
    "compute_output": Family(
        "nv_inference_compute_output_summary_us",
        "summary",
        "Summary of inference compute output duration in microseconds (does not include cached requests)",
    ),
    "cache_hit": Family(
        "nv_cache_hit_summary_per_model", "summary", "Summary of cache hit duration per model, in microseconds"
    ),
    "cache_miss": Family(
        "nv_cache_miss_summary_per_model", "summary", "Summary of cache miss duration per model, in microseconds"
    ),
}
# As in Triton, a model with the cache on has no summary of the whole duration, and only such a one has the cache's.
NOT_CACHED = ("request",)
ONLY_CACHED = ("cache_hit", "cache_miss")
IN_FLIGHT = Family("trioton_requests_in_flight", "gauge", "Number of requests that clients wait for")
OPEN_SEQUENCES = Family("trioton_open_sequences", "gauge", "Number of sequences that have begun and not ended")
INSTANCES = Family("trioton_model_instances", "gauge", "Number of model instances by state")
RESTARTS = Family(
    "trioton_instance_restarts_total", "counter", "Number of times that an instance that had died was started again"
)
ARENA = Family("trioton_worker_arena_bytes", "gauge", "Memory that workers share with the server for tensors, in bytes")
BATCH_SIZES = Family("trioton_batch_size", "histogram", "Rows of the batches that a batcher has sent")
FLUSHES = Family(
    "trioton_batch_flush_total", "counter", "Number of batches that a dynamic batcher has sent, by why they went"
)
ROUTED = Family(
    "trioton_split_requests_total", "counter", "Number of requests that a traffic split has sent to its targets"
)
FAILURES = Family("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes")
