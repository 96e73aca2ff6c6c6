"""Snapshots of the statistics of every ready version, for the metrics endpoint.

Flow: model table → [version snapshots] → metrics. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from actors.lifecycle.table import ModelTable
from actors.metrics.statistics import VersionSnapshot


def version_snapshots(table: ModelTable) -> Iterator[VersionSnapshot]:
    """By name and version, each as it is when it is asked for."""
    for entry, model in table.ready():
        yield VersionSnapshot(
            model=model.name,
            namespace=table.split(entry.name)[0],
            version=model.version_label(is_only=len(entry.models) == 1),
            metric_tags=model.config.metric_tags,
            statistics=model.statistics.frozen(model.name, model.version, has_responses=False),
            pending_requests=model.pending_count,
            load_seconds=entry.versions[model.version].load_seconds if model.version in entry.versions else 0.0,
            failures={reason.value: count for reason, count in model.statistics.failures.items()},
            histograms=model.statistics.histograms.frozen() if model.statistics.histograms is not None else {},
            summaries=model.statistics.summaries.frozen() if model.statistics.summaries is not None else {},
            flushes={reason.value: count for reason, count in model.statistics.flushes.items()},
            has_cache=model.statistics.has_cache,
            gpu=model.gpu,
            routed=model.routed(),
        )
