"""The metrics of model versions, from snapshots of what they have counted."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from actors.metrics.exemplars import Exemplars
from actors.metrics.statistics import FailureReason, VersionSnapshot
from trioton.gpus import Gpus
from trioton.metrics.families import Labels, Sample, Series, histogram_samples
from trioton.metrics.model_families import (
    ARENA,
    BATCH_SIZES,
    CACHE_METRICS,
    FAILURES,
    FLUSHES,
    HISTOGRAMS,
    IN_FLIGHT,
    INSTANCES,
    MODEL_METRICS,
    NOT_CACHED,
    ONLY_CACHED,
    OPEN_SEQUENCES,
    RESTARTS,
    ROUTED,
    SUMMARIES,
)

_NOT_IN_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")


def model_series(
    snapshots: Iterable[VersionSnapshot], *, has_counters: bool = True, gpus: Gpus | None = None, exemplars: Exemplars
) -> Iterator[Series]:
    """Those of every version. `has_counters` false leaves out Triton's group of counters."""
    metrics = [row for row in MODEL_METRICS if has_counters or row.family.kind != "counter"]
    for row in metrics:
        yield Series(row.family, (), ())
    if has_counters:
        yield Series(FAILURES, (), ())
    for snapshot in snapshots:
        labels = _labels(snapshot, gpus)
        for row in metrics:
            yield Series(row.family, labels, (Sample(row.value(snapshot)),))
        if has_counters:
            counts = [
                Sample(snapshot.failures.get(reason.value, 0), labels=(("reason", reason.value),))
                for reason in FailureReason
            ]
            yield Series(FAILURES, labels, counts)
        yield Series(IN_FLIGHT, labels, (Sample(snapshot.in_flight),))
        yield Series(OPEN_SEQUENCES, labels, (Sample(snapshot.open_sequences),))
        yield from _distributions(snapshot, labels, exemplars)
        yield from _of_instances(snapshot, labels)
        yield from _of_some(snapshot, labels)


def _of_instances(snapshot: VersionSnapshot, labels: Labels) -> Iterator[Series]:
    """A state that no instance is in is left out, but for that which all should be in."""
    if not snapshot.instances:
        return
    states = [
        Sample(count, labels=(("state", state),))
        for state, count in snapshot.instances.items()
        if count or state == "ready"
    ]
    yield Series(INSTANCES, labels, states)
    yield Series(RESTARTS, labels, (Sample(snapshot.restarts),))
    if snapshot.arena_bytes:
        yield Series(ARENA, labels, (Sample(snapshot.arena_bytes),))


def _batch_sizes(snapshot: VersionSnapshot) -> list[Sample]:
    counts = {batch.batch_size: batch.compute_infer.count for batch in snapshot.statistics.batch_stats}
    bounds = snapshot.batch_size_bounds
    cumulative = [sum(count for size, count in counts.items() if size <= bound) for bound in bounds]
    total = sum(size * count for size, count in counts.items())
    return histogram_samples(bounds, [*cumulative, sum(counts.values())], total)


def _of_some(snapshot: VersionSnapshot, labels: Labels) -> Iterator[Series]:
    """What only some models have. Of the reasons of batches those that have occurred."""
    if snapshot.flushes:
        counts = [Sample(count, labels=(("reason", reason),)) for reason, count in snapshot.flushes.items() if count]
        yield Series(FLUSHES, labels, counts)
        if snapshot.batch_size_bounds:
            yield Series(BATCH_SIZES, labels, _batch_sizes(snapshot))
    if snapshot.routed:
        routed = [
            Sample(count, labels=(("target", target), ("target_version", version), ("role", role)))
            for target, version, role, count in snapshot.routed
        ]
        yield Series(ROUTED, labels, routed)
    if snapshot.has_cache:
        for row in CACHE_METRICS:
            yield Series(row.family, labels, (Sample(row.value(snapshot)),))


def _distributions(snapshot: VersionSnapshot, labels: Labels, exemplars: Exemplars) -> Iterator[Series]:
    for key, histogram in snapshot.histograms.items():
        traced = exemplars.of(snapshot.model, snapshot.version, histogram.bounds) if key == "request" else ()
        samples = histogram_samples(histogram.bounds, histogram.cumulative, round(histogram.total, 3), traced)
        yield Series(HISTOGRAMS[key], labels, samples)
    for key, summary in snapshot.summaries.items():
        if key in (NOT_CACHED if snapshot.has_cache else ONLY_CACHED):
            continue
        quantiles = [
            Sample(math.nan if value is None else value, labels=(("quantile", repr(quantile)),))
            for quantile, value in summary.quantiles
        ]
        yield Series(
            SUMMARIES[key], labels, (*quantiles, Sample(summary.total, "_sum"), Sample(summary.count, "_count"))
        )


def _labels(snapshot: VersionSnapshot, gpus: Gpus | None) -> Labels:
    labels = {f"_{_NOT_IN_A_LABEL.sub('_', tag)}": value for tag, value in snapshot.metric_tags.items()}
    labels |= {"model": snapshot.model, "version": str(snapshot.version)}
    if snapshot.namespace:
        labels["namespace"] = snapshot.namespace
    uuid = None if gpus is None or snapshot.gpu is None else gpus.uuid(snapshot.gpu)
    return tuple(labels.items()) if uuid is None else (*labels.items(), ("gpu_uuid", uuid))
