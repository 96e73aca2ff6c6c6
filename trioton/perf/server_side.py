"""The server's side of a measurement: what its statistics and metrics say of the same window. Pure but for
`snapshot`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.core import ModelStatistics, StatisticDuration
from trioton.perf.caller import Control, ModelDescription, TargetError

# Histograms of a request's duration, the first that there is, with their units in seconds.
_HISTOGRAMS = (
    ("nv_inference_request_duration_histogram_us", 1e-6),
    ("nv_inference_first_response_histogram_ms", 1e-3),
)
_BUCKET = re.compile(r"^(\w+)_bucket\{([^}]*)\}\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
PERCENTS = (50.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """Of one model in one window; all its versions together. Durations are mean seconds of a request.

    Attributes:
        composing: of an ensemble, its models.
        batch_sizes: how many batches of each size have run.
        percentiles: of the server's own latency, in seconds: the bounds of the bucket of its histogram in which each
            lies. The upper one is infinite where it lies in the last.
    """

    model: str
    succeeded: int = 0
    failed: int = 0
    inferences: int = 0
    executions: int = 0
    request: float = 0.0
    queue: float = 0.0
    compute_input: float = 0.0
    compute_infer: float = 0.0
    compute_output: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit: float = 0.0
    cache_miss: float = 0.0
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    percentiles: Mapping[float, tuple[float, float]] = field(default_factory=dict)
    composing: tuple[ServerFigures, ...] = ()

    @property
    def mean_batch(self) -> float:
        """Inferences of one execution."""
        return self.inferences / self.executions if self.executions else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a server has counted up to a moment: of each model its versions, and the text of its metrics."""

    statistics: Mapping[str, Sequence[ModelStatistics]]
    metrics: str = ""


async def snapshot(control: Control, description: ModelDescription) -> Snapshot | None:
    """None where the server does not tell."""
    try:
        found = {description.name: await control.statistics()}
        for name in composing(description):
            found[name] = await control.statistics(name)
        return Snapshot(found, await control.metrics())
    except TargetError:
        return None


def composing(description: ModelDescription) -> list[str]:
    """The models of an ensemble's steps."""
    scheduling = description.config.get("ensemble_scheduling") or {}
    steps = scheduling.get("step") or ()
    return list(dict.fromkeys(step["model_name"] for step in steps if step.get("model_name")))


def server_figures(before: Snapshot | None, after: Snapshot | None, model: str) -> ServerFigures | None:
    """What has been counted between two moments; None where one of them is missing."""
    if before is None or after is None:
        return None
    parts = tuple(_figures(before, after, name) for name in after.statistics if name != model)
    return _figures(before, after, model, parts)


def _figures(before: Snapshot, after: Snapshot, model: str, parts: tuple[ServerFigures, ...] = ()) -> ServerFigures:
    old, new = before.statistics.get(model, ()), after.statistics.get(model, ())

    def counted(name: str) -> tuple[int, float]:
        count, seconds = _duration(new, name)
        count_before, seconds_before = _duration(old, name)
        more = max(0, count - count_before)  # a version that was unloaded takes its counts along
        return more, max(0.0, seconds - seconds_before) / more if more else 0.0

    succeeded, request = counted("success")
    hits, hit = counted("cache_hit")
    misses, miss = counted("cache_miss")
    sizes, sizes_before = _batch_sizes(new), _batch_sizes(old)
    return ServerFigures(
        model=model,
        succeeded=succeeded,
        failed=counted("fail")[0],
        inferences=max(0, _sum(new, "inference_count") - _sum(old, "inference_count")),
        executions=max(0, _sum(new, "execution_count") - _sum(old, "execution_count")),
        request=request,
        queue=counted("queue")[1],
        compute_input=counted("compute_input")[1],
        compute_infer=counted("compute_infer")[1],
        compute_output=counted("compute_output")[1],
        cache_hits=hits,
        cache_misses=misses,
        cache_hit=hit,
        cache_miss=miss,
        batch_sizes={size: more for size in sorted(sizes) if (more := sizes[size] - sizes_before.get(size, 0)) > 0},
        percentiles=_percentiles(before.metrics, after.metrics, model),
        composing=parts,
    )


def _duration(versions: Iterable[ModelStatistics], name: str) -> tuple[int, float]:
    found: list[StatisticDuration] = [getattr(each.inference_stats, name) for each in versions]
    return sum(each.count for each in found), sum(each.ns for each in found) / 1e9


def _sum(versions: Iterable[ModelStatistics], name: str) -> int:
    return sum(int(getattr(each, name)) for each in versions)


def _batch_sizes(versions: Iterable[ModelStatistics]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for version in versions:
        for batch in version.batch_stats:
            sizes[batch.batch_size] = sizes.get(batch.batch_size, 0) + batch.compute_infer.count
    return sizes


def _percentiles(before: str, after: str, model: str) -> dict[float, tuple[float, float]]:
    for name, unit in _HISTOGRAMS:
        new = cumulative(after, name, model)
        if new:
            old = cumulative(before, name, model)
            counts = {bound: count - old.get(bound, 0.0) for bound, count in new.items()}
            return {percent: found for percent in PERCENTS if (found := _bucket(counts, percent, unit)) is not None}
    return {}


def cumulative(text: str, name: str, model: str) -> dict[float, float]:
    """The buckets of a histogram in a text of metrics, by their upper bounds; of all versions together."""
    found: dict[float, float] = {}
    for family, labels, value in _BUCKET.findall(text):
        if family == name:
            known = dict(_LABEL.findall(labels))
            if known.get("model") == model and "le" in known:
                bound = float(known["le"])
                found[bound] = found.get(bound, 0.0) + float(value)
    return found


def _bucket(counts: Mapping[float, float], percent: float, unit: float) -> tuple[float, float] | None:
    bounds = sorted(counts)
    total = counts[bounds[-1]]
    if total <= 0:
        return None
    low = 0.0
    for bound in bounds:
        if counts[bound] >= total * percent / 100:
            return low * unit, bound * unit
        low = bound
    return None
