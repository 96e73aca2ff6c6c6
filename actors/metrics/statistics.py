"""Statistics of one model version, as the statistics extension and the metrics report them.

Written by the version's scheduler, once per batch, so that the cost per request is small. Durations are kept in
nanoseconds; compute durations of a batch count once for every request in it (Triton's statistics extension).
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from actors.mail.messages import BatchDone, StreamEnded
from actors.mail.reply_slot import Reply
from actors.metrics.histogram import HistogramSnapshot
from actors.metrics.latencies import LatencyHistograms, LatencySummaries, all_histograms
from actors.metrics.response_statistics import ResponseStatistics
from actors.metrics.sliding_window import SummarySnapshot
from actors.metrics.sums import NANOSECONDS, Sum
from actors.metrics.watched import WatchedDurations
from backends.interface import BatchTiming
from protocol.core import InferBatchStatistics, InferStatistics, MemoryUsage, ModelStatistics, StatisticDuration
from protocol.errors import Cancelled, ServerError

BatchWatcher: TypeAlias = Callable[[BatchDone, float], None]


class FlushReason(enum.Enum):
    """Why a batch went as it was: the `reason` label of `trioton_batch_flush_total`.

    FULL: nothing more fits in. PREFERRED: it has reached a preferred size. TIMEOUT: its oldest request was as old as
    the delay. IDLE_INSTANCE: an instance was idle, and there is no delay. SHAPE: as one of these last two, but requests
    that waited would have fitted in had they had its shape.
    """

    FULL = "full"
    PREFERRED = "preferred"
    TIMEOUT = "timeout"
    IDLE_INSTANCE = "idle_instance"
    SHAPE = "shape"

    __hash__ = object.__hash__  # counted for each batch; that of enumerations is a Python call


class FailureReason(enum.Enum):
    """The `reason` label of `nv_inference_request_failure`."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One model version as the metrics see it."""

    model: str
    version: int
    metric_tags: Mapping[str, str]
    statistics: ModelStatistics
    pending_requests: int
    load_seconds: float
    failures: Mapping[str, int]
    histograms: Mapping[str, HistogramSnapshot] = field(default_factory=dict)
    summaries: Mapping[str, SummarySnapshot] = field(default_factory=dict)
    flushes: Mapping[str, int] = field(default_factory=dict)
    has_cache: bool = False
    namespace: str = ""
    gpu: int | None = None  # where all of its instances are on one
    # Of the histogram of batch sizes; empty where it is not shown.
    batch_size_bounds: Sequence[float] = ()
    in_flight: int = 0
    open_sequences: int = 0
    # By state; empty where there are none.
    instances: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    # Bytes of memory that workers share with the server.
    arena_bytes: int = 0
    # Of a traffic split: target, its version, what became of the requests, how many.
    routed: Sequence[tuple[str, str, str, int]] = ()


@dataclass(slots=True)
class _ComputeSums:
    """Sums over the executions of one batch size: input, infer and output, once for each execution, and once for each
    request that counts the execution as its own."""

    executions: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    requests: int = 0
    requests_input_ns: int = 0
    requests_infer_ns: int = 0
    requests_output_ns: int = 0

    def frozen(self) -> tuple[StatisticDuration, StatisticDuration, StatisticDuration]:
        """Input, infer and output of executions."""
        return (
            StatisticDuration(self.executions, self.input_ns),
            StatisticDuration(self.executions, self.infer_ns),
            StatisticDuration(self.executions, self.output_ns),
        )


@dataclass(slots=True)
class VersionStatistics:
    """The running sums. One writer, the version's scheduler; read at any time between two checkpoints. `histograms` and
    `summaries` are None where they are switched off."""

    inference_count: int = 0
    execution_count: int = 0
    last_inference_ms: int = 0
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    histograms: LatencyHistograms | None = field(default_factory=all_histograms)
    summaries: LatencySummaries | None = None
    has_cache: bool = False
    batch_size_bounds: Sequence[float] = ()
    # Batches by why they went; empty where nothing is batched.
    flushes: Counter[FlushReason] = field(default_factory=Counter)
    responses: ResponseStatistics = field(default_factory=ResponseStatistics)
    # Called with each batch that has run, and when its replies leave. It must not raise.
    watcher: BatchWatcher | None = None
    _success: Sum = field(default_factory=Sum)
    _fail: Sum = field(default_factory=Sum)
    _queue: Sum = field(default_factory=Sum)
    _cache_hit: Sum = field(default_factory=Sum)
    _cache_miss: Sum = field(default_factory=Sum)
    _by_batch_size: dict[int, _ComputeSums] = field(default_factory=dict)
    _spreads: tuple[LatencyHistograms | LatencySummaries | WatchedDurations, ...] = field(init=False)
    _watched: WatchedDurations | None = None

    def __post_init__(self) -> None:
        self._spreads = tuple(spread for spread in (self.histograms, self.summaries) if spread is not None)

    def continue_from(self, other: VersionStatistics) -> None:
        """Count on where another model's statistics stand, which counts no more."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def count_batch(self, done: BatchDone, now: float) -> None:
        """Count an executed batch, whose replies leave `now` (seconds of Trio's clock)."""
        if not done.batch:
            return
        if done.replies is None:  # each stream counts for itself when it ends
            requests = len(done.batch)
            self._queue.add(int(sum(done.started - item.arrival for item in done.batch) * NANOSECONDS), requests)
            for spread in self._spreads:
                for item in done.batch:
                    spread.count_queued(done.started - item.arrival)
        else:
            requests = self._count_replies(done, done.replies, now)
        if done.timing is not None:
            batch_size = 0
            for item in done.batch:
                batch_size += item.batch_size
            self.count_execution(done.timing, requests, batch_size)
            if self.watcher is not None:
                self.watcher(done, now)

    def _count_replies(self, done: BatchDone, replies: Sequence[Reply], now: float) -> int:
        """The number of requests that succeeded."""
        inferences, started = 0, done.started
        queued: list[float] = []
        taken: list[float] = []
        each_reply = iter(replies)  # a strict `zip` takes longer than all the rest of a small batch
        for item in done.batch:
            reply = next(each_reply)
            if item.is_cancelled:  # counted when it was abandoned
                continue
            arrival = item.arrival
            if isinstance(reply, ServerError):
                self.count_failure(_reason(reply), now - arrival)
                continue
            inferences += item.batch_size
            queued.append(started - arrival)
            taken.append(now - arrival)
        successes = len(taken)
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.inference_count += inferences
        self._success.count += successes
        self._success.ns += int(sum(taken) * NANOSECONDS)
        self._queue.count += successes
        self._queue.ns += int(sum(queued) * NANOSECONDS)
        for spread in self._spreads:
            spread.count_replies(queued, taken)
        return successes

    def count_execution(self, timing: BatchTiming, requests: int, batch_size: int) -> None:
        """Count what an execution took; `requests` of its requests count it as theirs."""
        self.execution_count += 1
        by_size = self._by_batch_size.get(batch_size)
        if by_size is None:
            by_size = self._by_batch_size[batch_size] = _ComputeSums()
        given, computed, taken = timing.compute_input_ns, timing.compute_infer_ns, timing.compute_output_ns
        by_size.executions += 1
        by_size.input_ns += given
        by_size.infer_ns += computed
        by_size.output_ns += taken
        by_size.requests += requests
        by_size.requests_input_ns += given * requests
        by_size.requests_infer_ns += computed * requests
        by_size.requests_output_ns += taken * requests
        if requests:
            for spread in self._spreads:
                spread.count_execution(timing, requests)

    def count_stream(self, ended: StreamEnded, *, now: float) -> None:
        """Count a request to a decoupled model, which has ended `now`."""
        item = ended.item
        if item.is_cancelled:
            return
        if ended.error is not None:
            self.count_failure(_reason(ended.error), now - item.arrival)
            return
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.inference_count += item.batch_size
        self._success.add(int((now - item.arrival) * NANOSECONDS))
        first = None if ended.first_response is None else ended.first_response - item.arrival
        for spread in self._spreads:
            spread.count_stream(now - item.arrival, first)

    def count_ensemble(
        self,
        timing: BatchTiming,
        *,
        batch_size: int,
        queue_ns: int,
        seconds: float,
        first_response_seconds: float | None,
    ) -> None:
        """Count a request that an ensemble has answered; `timing` and `queue_ns` are sums over its steps, and
        `first_response_seconds` is how long the first answer took, if there was one."""
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.inference_count += batch_size
        self._success.add(int(seconds * NANOSECONDS))
        self._queue.add(queue_ns)
        self.count_execution(timing, 1, batch_size=batch_size)
        for spread in self._spreads:
            spread.count_queued(queue_ns / NANOSECONDS)
            spread.count_stream(seconds, first_response_seconds)

    def count_cache_hit(self, seconds: float) -> None:
        """Count a request that the response cache has answered: it ran nothing, and waited in no queue."""
        self.last_inference_ms = time.time_ns() // 1_000_000
        nanoseconds = int(seconds * NANOSECONDS)
        self._success.add(nanoseconds)
        self._queue.add(0)
        self._cache_hit.add(nanoseconds)
        for spread in self._spreads:
            spread.count_replies((0.0,), (seconds,))
        if self.summaries is not None:
            self.summaries.cache_hit.observe(seconds * 1e6)

    def count_cache_miss(self, seconds: float) -> None:
        """Count the time that looking up and keeping an answer took, beside the request itself."""
        nanoseconds = int(seconds * NANOSECONDS)
        self._success.add(nanoseconds, 0)
        self._cache_miss.add(nanoseconds)
        if self.summaries is not None:
            self.summaries.cache_miss.observe(seconds * 1e6)

    def count_failure(self, reason: FailureReason, seconds: float) -> None:
        self.failures[reason] += 1
        self._fail.add(int(seconds * NANOSECONDS))

    def activity(self) -> tuple[int, ...]:
        """Changes whenever a request has ended or a batch was executed; costs little to ask for."""
        return self.execution_count, self._success.count, self._fail.count, self._cache_hit.count

    def counts(self) -> tuple[int, int, int, int]:
        """Successes, failures, cache hits and cache misses."""
        return self._success.count, self._fail.count, self._cache_hit.count, self._cache_miss.count

    def watched_durations(self) -> NDArray[np.int64] | None:
        """What `WatchedDurations.counts` gives, since `watch_durations`; None without that."""
        return None if self._watched is None else self._watched.counts()

    def watch_durations(self) -> None:
        """Count whole durations more finely than the metrics do, for people who look, until `unwatch_durations`."""
        self.unwatch_durations()  # those of a model that this one counts on from
        self._watched = WatchedDurations()
        self._spreads = (*self._spreads, self._watched)

    def unwatch_durations(self) -> None:
        self._spreads = tuple(spread for spread in self._spreads if spread is not self._watched)
        self._watched = None

    def frozen(
        self, name: str, version: int, memory_usage: Sequence[MemoryUsage] = (), *, has_responses: bool = True
    ) -> ModelStatistics:
        """`has_responses` false spares the rows of the responses, of which there may be many."""
        sums = self._by_batch_size.values()
        requests = sum(each.requests for each in sums)
        return ModelStatistics(
            name=name,
            version=str(version),
            last_inference=self.last_inference_ms,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            inference_stats=InferStatistics(
                success=self._success.frozen(),
                fail=self._fail.frozen(),
                queue=self._queue.frozen(),
                compute_input=StatisticDuration(requests, sum(each.requests_input_ns for each in sums)),
                compute_infer=StatisticDuration(requests, sum(each.requests_infer_ns for each in sums)),
                compute_output=StatisticDuration(requests, sum(each.requests_output_ns for each in sums)),
                cache_hit=self._cache_hit.frozen(),
                cache_miss=self._cache_miss.frozen(),
            ),
            response_stats=self.responses.frozen() if has_responses else {},
            batch_stats=self._batch_statistics(),
            memory_usage=tuple(memory_usage),
        )

    def _batch_statistics(self) -> tuple[InferBatchStatistics, ...]:
        return tuple(InferBatchStatistics(size, *sums.frozen()) for size, sums in sorted(self._by_batch_size.items()))


def _reason(error: ServerError) -> FailureReason:
    return FailureReason.CANCELED if isinstance(error, Cancelled) else FailureReason.BACKEND
