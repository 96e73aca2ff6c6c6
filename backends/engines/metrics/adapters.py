"""Metrics of an engine's adapters: which of them requests use now, for balancers that send requests to where an adapter
is loaded already, and what each has done.

An adapter is shown from its first request until it is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from backends import engine_families as families
from backends.engines.metrics.metric_set import UNSEEN, MetricSet
from backends.services import CustomMetric


class OneAdapter:
    """What is counted of one adapter."""

    def __init__(self, metrics: MetricSet, name: str) -> None:
        self._metrics = metrics
        self._held: list[CustomMetric] = []

        def metric(family: families.Family) -> CustomMetric:
            self._held.append(metrics.metric(family, adapter=name))
            return self._held[-1]

        self.running = metric(families.LORA_RUNNING)
        self.waiting = metric(families.LORA_WAITING)
        self.finished = metric(families.LORA_FINISHED)
        self.prompt_tokens = metric(families.LORA_PROMPT_TOKENS)
        self.cached_tokens = metric(families.LORA_CACHED_TOKENS)
        self.generated_tokens = metric(families.LORA_GENERATED_TOKENS)
        self.first_token = metric(families.LORA_FIRST_TOKEN)
        self.queued = metric(families.LORA_QUEUED)
        self.end_to_end = metric(families.LORA_END_TO_END)

    def close(self) -> None:
        for each in self._held:
            self._metrics.drop(each)


class AdapterMetrics:
    """`most` is how many adapters the engine has in memory at once, 0 for no limit; `now` gives the time of day."""

    def __init__(self, metrics: MetricSet, most: int, known: Collection[str], now: Callable[[], float]) -> None:
        self._metrics = metrics
        self._most = most
        self._known = frozenset(known)
        self._now = now
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._adapters: dict[str, OneAdapter] = {}
        self._shown: tuple[str, ...] = ()
        self._info: CustomMetric = UNSEEN
        self._show()

    def _of(self, adapter: str) -> OneAdapter:
        found = self._adapters.get(adapter)
        if found is None:
            found = self._adapters[adapter] = OneAdapter(self._metrics, adapter)
        return found

    def queue(self, adapter: str) -> OneAdapter:
        """A request waits for the engine; what else happens to it is to be counted there."""
        self._waiting[adapter] += 1
        found = self._of(adapter)
        found.waiting.increment(1)
        self._show()
        return found

    def submit(self, adapter: str) -> None:
        """One that waited is given to it."""
        self._leave(adapter, self._waiting)
        self._of(adapter).waiting.increment(-1)
        self._running[adapter] += 1
        self._of(adapter).running.increment(1)
        self._show()

    def withdraw(self, adapter: str) -> None:
        """One that waited does so no more."""
        self._leave(adapter, self._waiting)
        self._of(adapter).waiting.increment(-1)
        self._changed(adapter)

    def finish(self, adapter: str) -> None:
        """The engine holds nothing of it any more."""
        self._leave(adapter, self._running)
        self._of(adapter).running.increment(-1)
        self._changed(adapter)

    def keep(self, known: Collection[str]) -> None:
        """Which adapters there are now; what was counted of others goes."""
        self._known = frozenset(known)
        for adapter in list(self._adapters):
            self._forget_unknown(adapter)
        self._show()

    def _changed(self, adapter: str) -> None:
        self._forget_unknown(adapter)
        self._show()

    def _leave(self, adapter: str, counter: Counter[str]) -> None:
        counter[adapter] -= 1
        if counter[adapter] <= 0:
            del counter[adapter]

    def _forget_unknown(self, adapter: str) -> None:
        if adapter not in self._known and not self._running[adapter] and not self._waiting[adapter]:
            self._adapters.pop(adapter).close()

    def _show(self) -> None:
        labels = ",".join(sorted(self._running)), ",".join(sorted(self._waiting)), str(self._most or len(self._known))
        if labels != self._shown:
            self._metrics.drop(self._info)
            running, waiting, most = self._shown = labels
            self._info = self._metrics.metric(
                families.LORA_INFO, running_lora_adapters=running, waiting_lora_adapters=waiting, max_lora=most
            )
            self._info.set(self._now())
