"""Snapshots of the statistics of every ready version, for the metrics endpoint.

Flow: model table → [version snapshots] → metrics. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from actors.lifecycle.table import ModelTable
from actors.metrics.statistics import VersionSnapshot


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """How many versions were loaded, how many loads have failed, by the kind of the error, and of each model whether
    its last load has, looked at one by one."""

    loads: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    has_failed: Iterable[tuple[str, bool]] = ()


def version_snapshots(table: ModelTable, in_flight: Mapping[tuple[str, int], int]) -> Iterator[VersionSnapshot]:
    """By name and version, each as it is when it is asked for. `in_flight` are requests by the names that clients have
    used."""
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
            in_flight=sum(in_flight.get((name, model.version), 0) for name in {entry.name, model.name}),
            open_sequences=model.open_sequences,
            batch_size_bounds=model.statistics.batch_size_bounds,
            instances=model.instance_states(),
            restarts=model.restarts,
            arena_bytes=model.arena_bytes(),
        )
