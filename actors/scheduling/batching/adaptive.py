"""Adaptive batching: a dynamic batching policy that sets its own delay and batch size, to keep a p99 latency.

Enabled by the configuration's parameter `adaptive_batching`. Plain and synchronous, as all policies. Triton has no such
feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from actors.mail.messages import QueuedRequest
from actors.scheduling.batching.compute_cost import ComputeCost
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.batching.line import BatchLine
from actors.scheduling.batching.policy import Batch
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelDynamicBatching

PARAMETER = "adaptive_batching"

# A batch is large enough when a row costs no more than this beside what it would cost in the best batch.
WORTHWHILE = 1.1
# How far the part of the target that may be used falls with a batch that missed it, and rises with one that did not:
# the two balance where one batch in a hundred misses.
STEP_DOWN = 0.05
STEP_UP = 0.0005
# Longer than this times the expected wait for a full batch, nobody waits: the missing requests have not come.
PATIENCE = 2.0


@dataclass(frozen=True, slots=True)
class AdaptiveSettings:
    """`p99` is the latency to keep, from arrival to answer; `max_delay` bounds the delay; `window` is over how long the
    arrival rate is averaged. All in seconds."""

    p99: float
    max_delay: float = math.inf
    window: float = 1.0


def read_adaptive_settings(config: ModelConfig) -> AdaptiveSettings | None:
    """The settings in the parameter: a number of microseconds, or a list such as
    `p99_microseconds=20000,max_delay_microseconds=5000,window_microseconds=1000000`. None without the parameter.

    Raises:
        InvalidArgument: it is not understood, or the configuration sets what the policy is to pick.
    """
    text = config.parameter(PARAMETER).strip()
    if not text:
        return None
    batching = config.dynamic_batching
    if batching is None or not config.is_batching:
        raise _wrong(config, "needs 'dynamic_batching' and a 'max_batch_size' above 0")
    if batching.max_queue_delay_microseconds or batching.preferred_batch_size not in ((), (config.max_batch_size,)):
        raise _wrong(
            config, "picks delay and size, so leave out 'max_queue_delay_microseconds' and 'preferred_batch_size'"
        )
    given = {"p99_microseconds": text} if "=" not in text else _pairs(config, text)
    known = {"p99_microseconds": "p99", "max_delay_microseconds": "max_delay", "window_microseconds": "window"}
    settings: dict[str, float] = {}
    for key, value in given.items():
        if key not in known:
            raise _wrong(config, f"expected one of {', '.join(known)}, got '{key}'")
        if not (value.isascii() and value.isdigit() and int(value)):
            raise _wrong(config, f"expected '{key}' as a positive number of microseconds, got '{value}'")
        settings[known[key]] = int(value) / 1e6
    if "p99" not in settings:
        raise _wrong(config, "must give 'p99_microseconds'")
    return AdaptiveSettings(**settings)


def _pairs(config: ModelConfig, text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key in pairs:
            raise _wrong(config, f"expected a list of different <key>=<value>, got '{text}'")
        pairs[key] = value
    return pairs


def _wrong(config: ModelConfig, reason: str) -> InvalidArgument:
    return InvalidArgument(f"model '{config.name}', parameter '{PARAMETER}': {reason}")


class ArrivalRate:
    """Rows per second, averaged with a weight that falls off exponentially over the window."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._mass = 0.0
        self._at = 0.0

    def arrived(self, rows: int, now: float) -> None:
        self._mass = self._decayed(now) + rows
        self._at = now

    def value(self, now: float) -> float:
        return self._decayed(now) / self._window

    def _decayed(self, now: float) -> float:
        return self._mass * math.exp(min(self._at - now, 0.0) / self._window)


@dataclass(frozen=True, slots=True)
class BatchSetting:
    """Send a batch once it has `size` rows or its oldest request has waited `delay` seconds; never more than `limit`
    rows in one."""

    delay: float
    size: int
    limit: int


class AdaptiveTuning:
    """Chooses delay and size from what batches have taken (implements `actors.scheduling.batching.policy.BatchTuning`).

    With T the target, C(n) the time that a batch of n rows takes at its slow end, r the arrival rate in rows and k the
    number of instances:

    1. The limit is the largest n with 2·C(n) ≤ T: a request may have to wait for a batch that has just begun, and then
       for its own. If such batches cannot keep up with r, it is `max_batch_size`, since larger ones are the only help.
    2. The size is the smallest n up to the limit at which C(n)/n is within a tenth of the best: what lies beyond costs
       latency and gains next to nothing. Where compute time grows in step with the rows, that is 1, and nobody waits.
    3. The delay is what is left of the target, T·u - C(size), but no longer than twice the time in which the batch
       should fill up, (size - 1)/r. It is 0 where fewer than one more row is expected meanwhile.
    4. u, the part of the target that is used, falls when a batch brings a request later than T and rises slowly
       otherwise, so what the model of rules 1 to 3 leaves out is learned. In overload it falls to nothing: no delay.

    Until the first batches have been measured there is no delay and no limit.
    """

    def __init__(self, settings: AdaptiveSettings, *, max_batch_size: int, instances: int) -> None:
        self._settings = settings
        self._max_batch_size = max_batch_size
        self.resize(instances)
        self._sizes = _candidates(max_batch_size)
        self._rate = ArrivalRate(settings.window)
        self._cost = ComputeCost()
        self._used = 1.0
        self._setting = BatchSetting(0.0, max_batch_size, max_batch_size)
        self._picked_at = -math.inf

    def arrived(self, rows: int, now: float) -> None:
        self._rate.arrived(rows, now)

    def resize(self, instances: int) -> None:
        self._instances = max(instances, 1)

    def completed(self, batch: Sequence[QueuedRequest], *, started: float, now: float) -> None:
        if not batch:
            return
        self._cost.observe(sum(item.batch_size for item in batch), now - started)
        oldest = min(item.arrival for item in batch)
        if now - oldest > self._settings.p99:
            self._used *= 1 - STEP_DOWN
        else:
            self._used = min(1.0, self._used + STEP_UP)

    def setting(self, now: float) -> BatchSetting:
        """What holds at the moment; picked anew ten times within the target."""
        if now - self._picked_at >= self._settings.p99 / 10 and self._cost.is_known:
            self._picked_at = now
            self._setting = self._pick(self._rate.value(now))
        return self._setting

    def _pick(self, rate: float) -> BatchSetting:
        settings, cost = self._settings, self._cost
        limit = max((n for n in self._sizes if 2 * cost.slow(n) <= settings.p99), default=1)
        if self._instances * limit < rate * cost.mean(limit):
            limit = self._max_batch_size
        allowed = [n for n in self._sizes if n <= limit]
        best = min(cost.mean(n) / n for n in allowed)
        size = next(n for n in allowed if cost.mean(n) / n <= WORTHWHILE * best)
        delay = min(settings.p99 * self._used - cost.slow(size), settings.max_delay)
        if size == 1 or delay <= 0 or rate * delay < 1:
            return BatchSetting(0.0, size, limit)
        return BatchSetting(min(delay, PATIENCE * (size - 1) / rate), size, limit)


class AdaptiveBatchingPolicy(DynamicBatchingPolicy):
    """The dynamic batcher's rules, with preferred size, delay and largest size as they are picked at the moment."""

    def __init__(self, config: ModelDynamicBatching, *, max_batch_size: int, tuning: AdaptiveTuning) -> None:
        super().__init__(config, max_batch_size=max_batch_size)
        self._tuning = tuning

    def add(self, item: QueuedRequest) -> bool:
        self._tuning.arrived(item.batch_size, item.arrival)
        return super().add(item)

    def next_batch(self, now: float, is_ahead: bool = False) -> Batch | None:
        setting = self._tuning.setting(now)
        self._delay = setting.delay
        self._max_batch_size = setting.limit
        # Without a delay there is nothing to stop for: all that is there goes.
        self._set_preferred((setting.size if setting.delay else setting.limit,))
        return super().next_batch(now, is_ahead=is_ahead)

    def _is_passed(self, line: BatchLine, *, is_ahead: bool) -> bool:
        """Never: the delay is what suits the rate of arrivals, those of other shapes among them."""
        return False

    def renewed(self) -> AdaptiveBatchingPolicy:
        """With what was learned."""
        return AdaptiveBatchingPolicy(self._config, max_batch_size=self._config_max_batch_size, tuning=self._tuning)


def _candidates(max_batch_size: int) -> tuple[int, ...]:
    """The sizes that are weighed up: about eight in each doubling."""
    sizes = {max_batch_size}
    size = 1
    while size < max_batch_size:
        sizes.add(size)
        size += max(1, size // 8)
    return tuple(sorted(sizes))
