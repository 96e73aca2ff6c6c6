"""Metrics of an engine: its load and what it has generated, in vLLM's names, so that dashboards for it work.

Flow: generations → [engine metrics] → the server's custom metrics. All instances of a load keep theirs in
`ModelSource.shared`, so that they go on where an instance is started anew. What is counted for each token is a few
additions; the metrics are told once for each step and once for each request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from backends import engine_families as families
from backends.engines.admission import QUEUED_REQUESTS, QUEUED_TOKENS
from backends.engines.metrics.adapters import AdapterMetrics, OneAdapter
from backends.engines.metrics.metric_set import MetricSet
from backends.engines.worker.trioton_engine.engine import FINISHED, EngineInfo, Stats
from backends.interface import InstanceSpec
from backends.services import CustomMetric

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
# The ends of a request that was answered; its times are those of an answer.
ANSWERED = ("stop", "length")


class Timing:
    """When what happened to one generation, in seconds of the clock; 0 for not yet. `queued` is how long it has waited
    within the engine."""

    __slots__ = ("adapter", "arrival", "first", "last", "queued", "submitted", "tokens")

    def __init__(self, arrival: float) -> None:
        self.arrival = arrival
        self.adapter: OneAdapter | None = None
        self.submitted = 0.0
        self.queued = 0.0
        self.first = 0.0
        self.last = 0.0
        self.tokens = 0


class EngineMetrics:
    """One engine's. `metrics` are those of the server."""

    def __init__(
        self,
        metrics: MetricSet,
        *,
        info: EngineInfo,
        adapters: Collection[str] = (),
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._stats = Stats()
        self._waited = -1
        # Of the present step.
        self._prompt = self._generated = self._steady = 0
        self._stepped = -1.0  # when the last step came
        self._cache_info: CustomMetric | None = None
        self._open_load()
        self._open_tokens()
        self._open_requests()
        shown = metrics if "adapter" in info.features else MetricSet(None, {})
        self.adapters = AdapterMetrics(shown, info.adapters, adapters, time_of_day)
        self.sleep(0)

    @classmethod
    def of(
        cls, spec: InstanceSpec, *, context_length: int, info: EngineInfo, adapters: Collection[str]
    ) -> EngineMetrics:
        """Those of an instance, also of one that is started anew."""
        source = spec.source
        key = _key(spec)
        found = source.shared.get(key)
        if not isinstance(found, EngineMetrics):
            labels = {
                "model_name": source.name,
                "engine": spec.name,
                "model": source.name,
                "version": str(source.version),
            }
            metrics = None if source.services is None else source.services.metrics
            found = source.shared[key] = cls(MetricSet(metrics, labels, context_length), info=info, adapters=adapters)
        else:
            found.adapters.keep(adapters)
        return found

    @staticmethod
    def retire(spec: InstanceSpec) -> None:
        """Show those of an instance no more."""
        found = spec.source.shared.pop(_key(spec), None)
        if isinstance(found, EngineMetrics):
            found.close()

    def _open_load(self) -> None:
        metric = self._metrics.metric
        self._running = metric(families.RUNNING)
        self._waiting = metric(families.WAITING)
        self._usages = (metric(families.CACHE_USAGE), metric(families.GPU_CACHE_USAGE))
        self._preemptions = metric(families.PREEMPTIONS)
        self._prefix_queries = metric(families.PREFIX_QUERIES)
        self._prefix_hits = metric(families.PREFIX_HITS)
        self._sleep_states = [metric(families.SLEEP_STATE, sleep_state=state) for state in SLEEP_STATES]

    def _open_tokens(self) -> None:
        metric = self._metrics.metric
        self._prompt_tokens = metric(families.PROMPT_TOKENS)
        self._cached_tokens = metric(families.CACHED_TOKENS)
        self._generated_tokens = metric(families.GENERATED_TOKENS)
        self._step_tokens = metric(families.STEP_TOKENS)
        self._first_token = metric(families.FIRST_TOKEN)
        self._between_tokens = (metric(families.BETWEEN_TOKENS), metric(families.TRITON_BETWEEN_TOKENS))

    def _open_requests(self) -> None:
        metric = self._metrics.metric
        self._finished = {reason: metric(families.FINISHED, finished_reason=reason) for reason in FINISHED}
        self._rejections = {
            reason: metric(families.REJECTIONS, reason=reason) for reason in (QUEUED_REQUESTS, QUEUED_TOKENS)
        }
        self._end_to_end = metric(families.END_TO_END)
        self._queued = metric(families.QUEUED)
        self._inference = metric(families.INFERENCE)
        self._prefill = metric(families.PREFILL)
        self._decode = metric(families.DECODE)
        self._per_token = metric(families.PER_TOKEN)
        self._request_prompt = metric(families.REQUEST_PROMPT)
        self._request_generated = (metric(families.REQUEST_GENERATED), metric(families.REQUEST_MOST_GENERATED))
        self._asked_choices = metric(families.ASKED_CHOICES)
        self._asked_tokens = metric(families.ASKED_TOKENS)

    # The engine

    def begin(self, stats: Stats, waiting: int) -> None:
        """An engine has been loaded: its own counters start there."""
        self._stats = stats._replace(cache_blocks=-1)
        self.note(stats, waiting)

    def note(self, stats: Stats, waiting: int) -> None:
        """The engine's load, and how many requests wait for it."""
        last, self._stats = self._stats, stats
        if stats == last and waiting == self._waited:
            return
        self._waited = waiting
        self._running.set(stats.running)
        self._waiting.set(stats.waiting + waiting)
        for usage in self._usages:
            usage.set(stats.cache_usage)
        if stats.preemptions != last.preemptions:
            self._preemptions.increment(max(stats.preemptions - last.preemptions, 0))
        if stats.prefix_queries != last.prefix_queries:
            self._prefix_queries.increment(max(stats.prefix_queries - last.prefix_queries, 0))
            self._prefix_hits.increment(max(stats.prefix_hits - last.prefix_hits, 0))
        if (stats.cache_blocks, stats.block_tokens) != (last.cache_blocks, last.block_tokens):
            self._show_cache(stats)

    def end(self) -> None:
        """The engine has ended: nothing runs, waits, or is held."""
        self.note(self._stats._replace(running=0, waiting=0, cache_usage=0.0), 0)

    def sleep(self, level: int) -> None:
        """The engine sleeps: 1 with its weights in host memory, 2 without any; 0 while it is awake."""
        for place, metric in enumerate(self._sleep_states):
            metric.set(float(place == level))

    def _show_cache(self, stats: Stats) -> None:
        if self._cache_info is not None:
            self._metrics.drop(self._cache_info)
            self._cache_info = None
        if stats.cache_blocks and stats.block_tokens:
            blocks, size = str(stats.cache_blocks), str(stats.block_tokens)
            self._cache_info = self._metrics.metric(families.CACHE_INFO, block_size=size, num_gpu_blocks=blocks)
            self._cache_info.set(1)

    # Requests

    def reject(self, limit: str) -> None:
        """One was refused because of a limit of the queue."""
        self._rejections[limit].increment(1)

    def first(self, timing: Timing, prompt_tokens: int, cached_tokens: int, queued: float, now: float) -> None:
        """The first tokens of a request have come, which `tokens` is told of, too."""
        timing.first = now
        timing.queued = queued
        self._prompt += prompt_tokens
        self._first_token.observe(now - timing.arrival)
        if cached_tokens > 0:
            self._cached_tokens.increment(cached_tokens)
        adapter = timing.adapter
        if adapter is not None:
            adapter.prompt_tokens.increment(prompt_tokens)
            adapter.cached_tokens.increment(max(cached_tokens, 0))
            adapter.first_token.increment(now - timing.arrival)

    def saw(self, timing: Timing, prompt_tokens: int) -> None:
        """So many tokens of a request's prompt were of pictures."""
        self._prompt += prompt_tokens
        if timing.adapter is not None:
            timing.adapter.prompt_tokens.increment(prompt_tokens)

    def tokens(self, timing: Timing, count: int, now: float) -> None:
        """New tokens of a request. Those that got some in the step before, nearly all, are counted together."""
        self._generated += count
        timing.tokens += count
        last, timing.last = timing.last, now
        if last == self._stepped:
            self._steady += 1
        elif last:
            for each in self._between_tokens:
                each.observe(now - last)

    def step(self, now: float) -> None:
        """The end of a step's events."""
        generated, prompt = self._generated, self._prompt
        if not generated:
            return
        if self._steady:
            for each in self._between_tokens:
                each.observe(now - self._stepped, self._steady)
        self._stepped = now
        self._generated_tokens.increment(generated)
        self._step_tokens.observe(prompt + generated)
        if prompt:
            self._prompt_tokens.increment(prompt)
        self._prompt = self._generated = self._steady = 0

    def finish(self, timing: Timing, reason: str, now: float, *, prompt_tokens: int, most_tokens: int) -> None:
        """A request has ended. Times are counted of those that were answered."""
        self._finished[reason].increment(1)
        adapter = timing.adapter
        if adapter is not None:
            adapter.generated_tokens.increment(timing.tokens)
        if reason not in ANSWERED:
            return
        begun = timing.submitted + timing.queued
        self._end_to_end.observe(now - timing.arrival)
        self._queued.observe(begun - timing.arrival)
        self._observe_phases(timing, begun)
        self._request_prompt.observe(prompt_tokens)
        for each in self._request_generated:
            each.observe(timing.tokens)
        self._asked_choices.observe(1)
        self._asked_tokens.observe(most_tokens)
        if adapter is not None:
            adapter.finished.increment(1)
            adapter.queued.increment(begun - timing.arrival)
            adapter.end_to_end.increment(now - timing.arrival)

    def _observe_phases(self, timing: Timing, begun: float) -> None:
        if not timing.first:  # it has ended without a token
            return
        self._inference.observe(max(timing.last - begun, 0.0))
        self._prefill.observe(max(timing.first - begun, 0.0))
        self._decode.observe(timing.last - timing.first)
        if timing.tokens > 1:
            self._per_token.observe((timing.last - timing.first) / (timing.tokens - 1))

    def close(self) -> None:
        """They are shown no more."""
        self._metrics.close()


def _key(spec: InstanceSpec) -> str:
    return f"engine metrics of {spec.name}"
