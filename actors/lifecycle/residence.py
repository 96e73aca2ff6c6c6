"""Residence: keeps models within the memory budget by evicting the least recently used, and loads evicted ones on
demand.

Flow: core → [residence] → model control, and back with a lease on the model. Owned by the model manager. A lease covers
a model and all that it is composed of; leased models are never evicted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import trio

from actors.lifecycle.memory_budget import MemoryBudget, Victims
from actors.lifecycle.memory_usage import estimated_bytes, measured_bytes
from actors.lifecycle.table import ModelEntry, ModelTable
from actors.model.deadline import within_timeout
from actors.model.deferred import DeferredRequests
from actors.model.servable import Servable
from actors.model.submission import Submission
from protocol.core import ReplyChannel
from protocol.errors import Internal, Overloaded, ServerError
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse

logger = logging.getLogger("trioton.residence")

# How often the queue is served again although nothing seems to have changed: the end of a sequence sends no event.
RECHECK_SECONDS = 1.0


class Control(Protocol):
    """What the residence needs of `actors.lifecycle.control.ModelControl`."""

    async def load_resident(self, name: str) -> None:
        """Load a model that was evicted, if it does not serve already; raises ServerError."""

    async def evict(self, name: str) -> None:
        """Unload a model until it is needed again; returns when its memory is free."""


class ResidenceSnapshot(NamedTuple):
    """For the metrics, by model: bytes of the resident ones, evictions, and loads on demand."""

    limit: int
    used: int
    waiting: int
    sizes: dict[str, int]
    evictions: dict[str, int]
    demand_loads: dict[str, int]


@dataclass(eq=False, slots=True)
class _Ticket:
    """A queued request for a lease. When `done`, it has its leases, or its `error`."""

    names: Sequence[str]
    done: trio.Event = field(default_factory=trio.Event)
    error: ServerError | None = None
    is_given_up: bool = False


class Residence:
    """One per server. `run` serves the queue; the rest may be used before it is started."""

    def __init__(
        self, limit: int, table: ModelTable, load_limit: trio.CapacityLimiter, failures: CallbackFailures | None = None
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._budget = MemoryBudget(limit)
        self._table = table
        self._load_limit = load_limit
        self._control: Control | None = None
        self._line: list[_Ticket] = []
        self._doomed: frozenset[str] = frozenset()
        self._is_over = False
        self._changed = trio.Event()
        self._deferred = DeferredRequests("the memory budget", self._failures)

    def attach(self, control: Control) -> None:
        self._control = control

    def snapshot(self) -> ResidenceSnapshot:
        budget = self._budget
        sizes = {name: budget.sizes[name] for name in sorted(budget.resident)}
        return ResidenceSnapshot(
            budget.limit, budget.used, len(self._line), sizes, dict(budget.evictions), dict(budget.demand_loads)
        )

    # For requests

    def submit(
        self,
        request: InferenceRequest,
        reply_to: ReplyChannel,
        answer: Callable[[InferenceRequest], Awaitable[InferenceResponse]],
    ) -> Submission:
        """Have `answer` called in a task while the request's model is leased, and its outcome sent to `reply_to`."""

        async def lease_and_answer(request: InferenceRequest) -> InferenceResponse:
            async with self.lease(request):
                return await answer(request)

        return self._deferred.submit(request, reply_to, lease_and_answer)

    @asynccontextmanager
    async def lease(self, request: InferenceRequest, *, is_nested: bool = False) -> AsyncIterator[None]:
        """Within this block the request's model, and those that it is composed of, are resident.

        Queues while they are loaded, within the request's own timeout. A request that a model makes (`is_nested`) does
        not wait for room, as the calling model may be what it would wait for: its model is loaded above the budget if
        need be. Cancelled, it leaves the queue and gives its leases back.

        Raises:
            ServerError: a model could not be loaded, or the timeout has passed.
        """
        names = self._table.with_needs(request.model_name)
        if is_nested:
            await self._bring_now(names)
        elif self._budget.missing(names) or not self._doomed.isdisjoint(names):
            wait = self._wait_in_line(names)
            await (within_timeout(request, wait) if request.timeout_microseconds else wait)
        else:
            self._budget.use(names)
        try:
            yield
        finally:
            self._give_back(names)

    async def _wait_in_line(self, names: Sequence[str]) -> None:
        ticket = _Ticket(names)
        self._line.append(ticket)
        self._wake()
        try:
            await ticket.done.wait()
        except BaseException:
            ticket.is_given_up = True
            if ticket in self._line:
                self._line.remove(ticket)
            elif ticket.done.is_set() and ticket.error is None:
                self._give_back(names)
            self._wake()
            raise
        if ticket.error is not None:
            raise ticket.error.with_traceback(None)

    async def _bring_now(self, names: Sequence[str]) -> None:
        """A model that is itself being loaded holds a load slot, and lends it to the loads that it asks for."""
        self._budget.use(names)
        self._load_limit.total_tokens += 1
        try:
            await self._load(self._budget.missing(names))
        except BaseException:
            self._give_back(names)
            raise
        finally:
            self._load_limit.total_tokens -= 1

    def _give_back(self, names: Sequence[str]) -> None:
        self._budget.give_back(names, trio.current_time())
        if self._line or self._is_over:
            self._wake()

    # The actor

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the queue, and run the requests that have their leases. Cancelled, it abandons its loads, and answers
        the requests with Unavailable."""
        async with trio.open_nursery() as nursery:
            self._deferred.open(nursery)
            task_status.started()
            try:
                await self._serve(nursery)
            finally:
                self._deferred.close()

    async def _serve(self, loads: trio.Nursery) -> None:
        while True:
            self._changed = trio.Event()
            try:
                self._serve_line(loads)
                self._trim(loads)
            except Exception as error:
                self._fail_line(error)
            with trio.move_on_after(RECHECK_SECONDS) if self._line else trio.CancelScope():
                await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()

    def _serve_line(self, loads: trio.Nursery) -> None:
        """Grant memory in the order of the queue. A request that needs none overtakes, unless the first in the queue
        waits for memory that it would use: else busy models would starve all others."""
        self._doomed = frozenset()
        has_first = False
        for ticket in list(self._line):
            missing = self._budget.missing(ticket.names)
            if not missing:
                if self._doomed.isdisjoint(ticket.names):
                    self._line.remove(ticket)
                    self._budget.use(ticket.names)
                    ticket.done.set()
            elif has_first or any(map(self._budget.is_reserved, missing)):  # later, or it is being loaded already
                continue
            else:
                needed = {name: self._budget.sizes.get(name, 0) for name in missing}
                victims = self._budget.victims(sum(needed.values()), ticket.names, self._is_idle)
                if victims.fits:
                    self._line.remove(ticket)
                    self._budget.use(ticket.names)
                    self._begin(needed, victims)
                    loads.start_soon(self._bring, ticket, missing, victims.names)
                else:
                    has_first = True
                    self._doomed = self._budget.doomed(sum(needed.values()), ticket.names)

    def _trim(self, evictions: trio.Nursery) -> None:
        """Evict for what was loaded above the budget, or is larger than estimated. The most recently used model stays:
        alone, it may be larger than the budget."""
        if self._budget.is_exceeded:
            for name in self._budget.victims(0, self._budget.youngest(), self._is_idle).names:
                self._budget.begin_eviction(name)
                evictions.start_soon(self._evict_one, name)
        self._is_over = self._budget.is_exceeded

    def _fail_line(self, error: Exception) -> None:
        """The policy has raised: fail all queued requests, since none could be granted any more."""
        self._failures.note("scheduler", error, "the memory budget failed, and with it the requests that wait for it")
        line, self._line = self._line, []
        for ticket in line:
            ticket.error = Internal("the memory budget failed unexpectedly; the server's log has the details")
            ticket.done.set()

    def _begin(self, needed: dict[str, int], victims: Victims) -> None:
        self._budget.reserve(needed)
        for name in victims.names:
            self._budget.begin_eviction(name)

    async def _bring(self, ticket: _Ticket, missing: Sequence[str], victims: Sequence[str]) -> None:
        """Load what a request needs; it has its leases already."""
        try:
            await self._evict(victims)
            await self._load(missing)
        except ServerError as error:
            ticket.error = error
            self._fail_others(missing, error)
        except Exception as error:
            self._failures.note("background", error, f"model '{ticket.names[-1]}' could not be loaded on demand")
            ticket.error = Internal("the load on demand failed unexpectedly; the server's log has the details")
            for name in victims:
                self._end_eviction(name)
        finally:
            for name in missing:
                self._budget.release(name)
            if ticket.error is not None or ticket.is_given_up:
                self._give_back(ticket.names)
            ticket.done.set()
            self._wake()

    async def _load(self, missing: Sequence[str]) -> None:
        """Load models, composing ones first."""
        assert self._control is not None
        for name in missing:
            if self._budget.missing([name]):
                self._budget.demand_loads[name] += 1
                await self._control.load_resident(name)

    def _fail_others(self, missing: Sequence[str], error: ServerError) -> None:
        """What cannot be loaded now is not tried again for each request that waits for it."""
        for name in self._budget.missing(missing)[:1]:
            for other in [each for each in self._line if name in each.names]:
                self._line.remove(other)
                other.error = error
                other.done.set()

    async def _evict(self, names: Sequence[str]) -> None:
        """Returns when their memory is free."""
        async with trio.open_nursery() as evictions:
            for name in names:
                evictions.start_soon(self._evict_one, name)

    async def _evict_one(self, name: str) -> None:
        assert self._control is not None
        try:
            await self._control.evict(name)
        except ServerError as error:
            logger.error("%s", error)
            await trio.sleep(RECHECK_SECONDS)  # it is tried again, and may fail each time
        except Exception as error:
            self._failures.note("background", error, f"model '{name}' could not be unloaded for the memory budget")
            await trio.sleep(RECHECK_SECONDS)
        finally:
            self._end_eviction(name)
            self._wake()

    def _end_eviction(self, name: str) -> None:
        """Also of one that has failed: then the model stays, and counts, and is evicted another time."""
        if self._table.entries[name].models:
            self._budget.cancel_eviction(name, trio.current_time())
        else:
            self._budget.end_eviction(name)

    def _is_idle(self, name: str) -> bool:
        """Whether no load or unload of it is under way, and it has no state that a load would not restore."""
        entry = self._table.entries[name]
        return not entry.lock.locked() and not entry.is_overridden and not any(m.has_work for m in entry.models)

    # For the life cycle of models

    async def make_room(self, entry: ModelEntry, models: Sequence[Servable], *, within_budget: bool = False) -> None:
        """Before these are loaded, by whatever request: evict idle models, as far as needed. Where that is not enough,
        they are loaded all the same, but `within_budget`.

        Raises:
            Overloaded: they have to be `within_budget`, and there is no room.
        """
        if not models or self._budget.is_reserved(entry.name):
            return
        size = sum([await trio.to_thread.run_sync(estimated_bytes, model) for model in models])
        size = self._budget.sizes.get(entry.name, size)
        victims = self._budget.victims(size, (entry.name,), self._is_idle)
        if not victims.fits and within_budget:
            raise Overloaded(
                f"out of memory: it needs {size} bytes of the memory budget, {self._budget.used} of "
                f"{self._budget.limit} cannot be freed now"
            )
        if not victims.fits:
            logger.info(
                "model '%s' is loaded above the memory budget: it needs %d bytes, %d of %d cannot be freed now",
                entry.name,
                size,
                self._budget.used,
                self._budget.limit,
            )
        self._begin({entry.name: size}, victims)
        try:
            await self._evict(victims.names)
        except BaseException:
            self._budget.release(entry.name)
            for name in victims.names:
                self._end_eviction(name)
            raise

    async def note_loaded(self, entry: ModelEntry) -> None:
        """The model serves."""
        size = sum([await trio.to_thread.run_sync(measured_bytes, model) for model in entry.models])
        self._budget.add(entry.name, size, trio.current_time())
        self._wake()

    def note_failed(self, entry: ModelEntry) -> None:
        """The load of the model failed."""
        self._budget.release(entry.name)
        self._wake()

    def note_gone(self, entry: ModelEntry) -> None:
        """No version of the model serves or holds memory any more."""
        self._budget.remove(entry.name)
        self._wake()
