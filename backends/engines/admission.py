"""Admission policy of an engine: which generations it is given now, which wait, and which are refused.

Plain and synchronous, consulted by `backends.engines.generations`.

    1. A generation waits for its turn: the lower `priority` first, then as they came. Where keys have weights, those of
       one priority take turns, by the tokens that each has used.
    2. The first is admitted while fewer than `requests` are in flight, and its tokens fit beside theirs into `tokens`.
    3. Where the engine tells of its cache, the prompt must fit into what is free there, beside the prompts that it has
       not begun: what waits in the engine can be neither ordered nor moved to another one.
    4. One that would fit nowhere is admitted when nothing else is in flight: the engine then says what is wrong.
    5. What would make the queue longer than its bounds is refused at once.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec

from backends.engines.lines import PriorityLine, TurnsLine
from backends.engines.worker.trioton_engine.engine import Stats
from protocol.core import QueueRoom
from protocol.errors import Overloaded
from protocol.quotas.fair_queue import NOBODY, Holder

# The limits of the queue, by their names at vLLM.
QUEUED_REQUESTS, QUEUED_TOKENS = "max_num_queued_reqs", "max_num_queued_tokens"

T = TypeVar("T", bound=Hashable)


class AdmissionLimits(msgspec.Struct, frozen=True):
    """0 stands for no limit. Tokens in flight are those of prompts and the most that may follow; queued ones those of
    prompts."""

    requests: int = 0
    tokens: int = 0
    queued_requests: int = 0
    queued_tokens: int = 0


class QueueFull(Overloaded):
    """The queue has no room for one more, because of its `limit`."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class Need(msgspec.Struct, frozen=True):
    """What a generation takes: the tokens of its prompt, and with the most that may follow."""

    prompt_tokens: int
    most_tokens: int
    priority: int = 0


class Admission(Generic[T]):
    """The queue of one engine. `model` is for the texts."""

    def __init__(self, limits: AdmissionLimits, model: str) -> None:
        self._limits = limits
        self._model = model
        self._line: PriorityLine[T] | TurnsLine[T] = PriorityLine()
        self._queued: dict[T, Need] = {}
        self._queued_tokens = 0
        self._in_flight: dict[T, Need] = {}
        self._tokens = 0
        self._begun: set[T] = set()
        self._unbegun_tokens = 0
        self._free_tokens: float | None = None

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._queued)

    @property
    def in_flight(self) -> int:
        """How many the engine has."""
        return len(self._in_flight)

    @property
    def queue_room(self) -> QueueRoom | None:
        """The bounds of the queue, and what is in it; None where there are no bounds."""
        limits = self._limits
        if not (limits.queued_requests or limits.queued_tokens):
            return None
        return QueueRoom(limits.queued_requests, len(self._queued), limits.queued_tokens, self._queued_tokens)

    def add(self, item: T, need: Need, holder: Holder = NOBODY) -> None:
        """Queue one, of a key if there are keys. Raises QueueFull."""
        limits = self._limits
        if limits.queued_requests and len(self._queued) >= limits.queued_requests:
            raise QueueFull(
                f"model '{self._model}': {len(self._queued)} requests wait for its engine, which is the maximum "
                "(parameter max_queue_requests)",
                QUEUED_REQUESTS,
            )
        tokens = self._queued_tokens + need.prompt_tokens
        if limits.queued_tokens and self._queued and tokens > limits.queued_tokens:
            raise QueueFull(
                f"model '{self._model}': the requests that wait for its engine have {self._queued_tokens} tokens; with "
                f"{need.prompt_tokens} more they would exceed {limits.queued_tokens} (parameter max_queue_tokens)",
                QUEUED_TOKENS,
            )
        self._queued[item] = need
        self._queued_tokens = tokens
        if holder is not NOBODY:
            self._look_at_weight(holder)
        self._line.add(item, holder, priority=need.priority, tokens=need.prompt_tokens)

    def _look_at_weight(self, holder: Holder) -> None:
        """Turns begin with the first key that has a weight; when no key has one any more they end as soon as nothing
        else waits."""
        if isinstance(self._line, PriorityLine):
            if holder.weight:
                self._line = self._line.in_turns()
        elif not holder.weight and len(self._queued) == 1:
            self._line = PriorityLine()

    def generated(self, holder: Holder, tokens: int) -> None:
        """One of a key has come to so many more tokens."""
        if isinstance(self._line, TurnsLine):
            self._line.generated(holder, tokens)

    def next(self) -> T | None:
        """One that the engine is to be given now; it is in flight then."""
        item = self._line.first()
        if item is None:
            return None
        need = self._queued[item]
        if not self._fits(need):
            return None
        self._line.take_first()
        self._forget(item)
        self._in_flight[item] = need
        self._tokens += need.most_tokens
        self._unbegun_tokens += need.prompt_tokens
        return item

    def _fits(self, need: Need) -> bool:
        limits = self._limits
        if not self._in_flight:
            return True
        if limits.requests and len(self._in_flight) >= limits.requests:
            return False
        if limits.tokens and self._tokens + need.most_tokens > limits.tokens:
            return False
        return self._free_tokens is None or self._unbegun_tokens + need.prompt_tokens <= self._free_tokens

    def begin(self, item: T) -> None:
        """The engine has begun one: what it takes is in the engine's own figures from now on."""
        if item in self._in_flight and item not in self._begun:
            self._begun.add(item)
            self._unbegun_tokens -= self._in_flight[item].prompt_tokens

    def finish(self, item: T) -> None:
        """One has ended, in whatever way, and the engine holds nothing for it any more."""
        need = self._in_flight.pop(item, None)
        if need is not None:
            self._tokens -= need.most_tokens
            if item in self._begun:
                self._begun.discard(item)
            else:
                self._unbegun_tokens -= need.prompt_tokens

    def withdraw(self, item: T) -> bool:
        """Take out one that waits; False where it does not."""
        if item not in self._queued:
            return False
        self._forget(item)
        self._line.remove(item)
        return True

    def _forget(self, item: T) -> None:
        self._queued_tokens -= self._queued.pop(item).prompt_tokens

    def note(self, stats: Stats) -> None:
        """What the engine tells of its load."""
        if stats.cache_blocks and stats.block_tokens:
            self._free_tokens = (1 - stats.cache_usage) * stats.cache_blocks * stats.block_tokens

    def clear(self) -> list[T]:
        """Take out all that wait, as they came."""
        left = list(self._queued)
        self._queued.clear()
        self._line = PriorityLine()
        self._queued_tokens = 0
        return left
