"""Model instance: one loaded copy of a model, running one batch at a time.

Flow: scheduler → [model instance] → backend → [model instance] → scheduler.
Started and owned by the model actor; knows only its backend and where to say that a batch is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.inbox import Inbox
from actors.messages import (
    BatchDone,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    QueuedRequest,
    SchedulerAddress,
    StreamEnded,
)
from actors.rate_limiter import InstanceLimit
from actors.reply_slot import Reply
from actors.response_statistics import ResponseStatistics
from actors.response_stream import ResponseStream
from actors.tracing.stamps import COMPUTE_END, begin_compute, end_compute, traces_of
from actors.warmup import warm_up
from backends.interface import Backend, BatchTiming, InstanceDied
from protocol.errors import Internal, ServerError, Unavailable
from repository.warmup_data import WarmupSample

logger = logging.getLogger("trioton.model_instance")


@dataclass(eq=False, slots=True)
class ModelInstance:
    """Closing its address means finish and unload; cancelling means stop now, and unload within a bounded time."""

    name: str
    backend: Backend
    scheduler: SchedulerAddress
    is_decoupled: bool = False
    runs_ahead: bool = False  # its backend is given the next batch while it still runs one
    is_iterative: bool = False  # its requests may be `Rescheduled`
    warmup: Sequence[WarmupSample] = ()
    limit: InstanceLimit | None = None
    responses: ResponseStatistics = field(default_factory=ResponseStatistics)  # of its decoupled model
    # Loaded until then, and never told of to the scheduler; None for one that takes requests.
    passive_until: trio.Event | None = None
    _inboxes: dict[InstanceAddress, Inbox[Execute]] = field(default_factory=dict, init=False)
    # Addresses whose last batch runs: the instance has another one for the next.
    _freed: set[InstanceAddress] = field(default_factory=set, init=False)
    _streams: set[ResponseStream] = field(default_factory=set, init=False)
    _hearing: trio.Nursery | None = field(default=None, init=False)
    _executing: int = field(default=0, init=False)
    _last_end: float = field(default=0.0, init=False)
    _has_died: bool = field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, warm up, serve, unload. A failed load or warm-up is raised; returns when closed, or when the backend
        has died."""
        failure: Exception | None = InstanceDied(f"model instance '{self.name}' has died before it was ready")
        try:
            await self.backend.load()
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch, nursery.cancel_scope)
                try:
                    if self.passive_until is None:
                        await warm_up(self.backend, self.warmup)
                        failure = None
                        await self._serve(task_status, nursery.cancel_scope)
                    else:
                        failure = None
                        task_status.started()
                        await self.passive_until.wait()
                except Exception as error:  # raised below, where no nursery puts it into a group
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            await self._unload()
        if failure is not None:
            raise failure

    async def _serve(self, task_status: trio.TaskStatus[None], serving: trio.CancelScope) -> None:
        def open_address() -> InstanceAddress:
            inbox = Inbox[Execute]()

            def take_ahead() -> None:
                hearing.start_soon(self._take_ahead, address, inbox, serving)

            address = InstanceAddress(self.name, inbox, take_ahead if self.runs_ahead else None)
            self._inboxes[address] = inbox
            self.scheduler.tell(InstanceReady(address))
            return address

        def free(address: InstanceAddress) -> None:
            """The instance can take a batch beside that of an address: by another one, and this one ends with it."""
            if address not in self._freed:
                self._freed.add(address)
                with suppress(Unavailable):
                    hearing.start_soon(self._hear, open_address(), free, serving)

        try:
            first = open_address()
            task_status.started()
            async with trio.open_nursery() as hearing:
                self._hearing = hearing
                hearing.start_soon(self._hear, first, free, serving)
        finally:
            for address, inbox in self._inboxes.items():
                self._report(InstanceGone(address))
                inbox.close()
            self._close_streams(self._streams, InstanceDied(f"model instance '{self.name}' was stopped"))

    async def _hear(
        self, address: InstanceAddress, free: Callable[[InstanceAddress], None], serving: trio.CancelScope
    ) -> None:
        """Run the batches that come to an address, until it is closed or freed."""
        inbox = self._inboxes[address]
        while (message := await inbox.receive()) is not None:
            await self._take(address, message, partial(free, address))
            if self._has_died:
                serving.cancel()
                return
            if address in self._freed:
                self._freed.remove(address)
                self._inboxes.pop(address).close()
                return

    async def _take(self, address: InstanceAddress, message: Execute, free: Callable[[], None] | None = None) -> None:
        if self.limit is None:
            await self._run_batch(address, message, free)
        else:
            async with self.limit:
                await self._run_batch(address, message, None)

    async def _run_batch(self, address: InstanceAddress, message: Execute, free: Callable[[], None] | None) -> None:
        if self.is_decoupled:
            await self._execute_decoupled(address, message)
        else:
            await self._execute(address, message, free)

    async def _take_ahead(self, address: InstanceAddress, inbox: Inbox[Execute], serving: trio.CancelScope) -> None:
        """Give the backend its next batch while it runs one."""
        await trio.lowlevel.checkpoint()  # until it has been given the one before, so that batches keep their order
        message = inbox.receive_nowait()
        if message is None:  # taken in turn, the one before has ended
            return
        await self._take(address, message)
        if self._has_died:
            serving.cancel()

    async def _watch(self, serving: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        """End the instance when its backend dies while idle; during a batch `execute` sees the death itself."""
        await self.backend.attend(task_status=task_status)
        self._has_died = True
        if not self._executing:
            serving.cancel()

    async def _unload(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.backend.unload_seconds) as unloading:
            try:
                await self.backend.unload()
            except Exception:  # an instance that cannot be freed must not take the server down
                logger.exception("model instance '%s' failed to unload", self.name)
        if unloading.cancelled_caught:
            logger.error("model instance '%s' did not unload within %g s", self.name, self.backend.unload_seconds)

    def _report(self, message: BatchDone | InstanceGone | StreamEnded) -> None:
        with suppress(Unavailable):  # a scheduler that has ended has answered for all that it had given out
            self.scheduler.tell(message)

    async def _execute(self, address: InstanceAddress, message: Execute, free: Callable[[], None] | None) -> None:
        """Run a batch and report it on every path."""
        batch = message.batch if message.keeps_rows else [item for item in message.batch if not item.is_cancelled]
        replies: list[Reply] = [InstanceDied(f"model instance '{self.name}' was stopped")] * len(batch)
        timing: BatchTiming | None = None
        started = trio.current_time()
        traces = begin_compute(batch)
        self._watch_callers(batch)
        self._executing += 1
        try:
            if batch:
                requests = [item.request for item in batch]
                if message.keeps_rows:
                    self._tell_of_gone(batch)
                if free is not None and self.backend.can_overlap:
                    result = await self.backend.execute_overlapping(requests, free)
                else:
                    result = await self.backend.execute(requests)
                if len(result.responses) != len(batch):
                    raise Internal(
                        f"model instance '{self.name}' gave {len(result.responses)} responses to {len(batch)} requests"
                    )
                replies = list(result.responses)
                timing = result.timing
        except Exception as error:  # never BaseException: Cancelled must pass
            replies = [self._as_reply(error)] * len(batch)
        finally:
            self._executing -= 1
            end_compute(traces, timing)
            if self.runs_ahead:
                started = max(started, self._last_end)  # taken ahead, it began when the batch before it had ended
                self._last_end = trio.current_time()
            for item in batch:
                item.watcher = None  # it knows the batch: a circle, which would keep all tensors until it is collected
            is_alive = not self._has_died and address not in self._freed
            self._report(BatchDone(address, message, batch, replies, started, timing, is_alive=is_alive))

    async def _execute_decoupled(self, address: InstanceAddress, message: Execute) -> None:
        """Hand a batch over and report it on every path; its responses come by their streams, also later."""
        streams = [ResponseStream(item, self._end_stream, self.responses, self.is_iterative) for item in message.batch]
        self._streams.update(streams)
        timing: BatchTiming | None = None
        started = trio.current_time()
        begin_compute(message.batch)
        self._watch_callers(message.batch)
        self._executing += 1
        try:
            timing = await self.backend.execute_decoupled([item.request for item in message.batch], streams)
        except Exception as error:
            self._close_streams(streams, self._as_reply(error))
        finally:
            self._executing -= 1
            running = [stream.item for stream in streams if stream in self._streams]
            end_compute(traces_of(running), timing, has_answers=False)  # for others it ended with their last response
            self._report(BatchDone(address, message, message.batch, None, started, timing, is_alive=not self._has_died))

    def _watch_callers(self, batch: Sequence[QueuedRequest]) -> None:
        """Have the backend told when a caller goes."""
        watcher = partial(self._tell_cancelled, batch)
        for item in batch:
            item.watcher = watcher

    def _tell_cancelled(self, batch: Sequence[QueuedRequest], item: QueuedRequest) -> None:
        if all(each.is_cancelled for each in batch):  # those too that had gone before the batch began
            for each in batch:
                self.backend.cancel(each.request)
        else:
            self.backend.cancel(item.request)

    def _tell_of_gone(self, batch: Sequence[QueuedRequest]) -> None:
        """Of callers that went before their batch began, for whom it runs all the same."""
        gone = [item for item in batch if item.is_cancelled and not item.is_for_nobody]
        if self.backend.runs_at_once:
            for item in gone:
                self._tell_cancelled(batch, item)
        elif gone and self._hearing is not None:
            self._hearing.start_soon(self._tell_soon, batch, gone)

    async def _tell_soon(self, batch: Sequence[QueuedRequest], gone: Sequence[QueuedRequest]) -> None:
        await trio.lowlevel.checkpoint()  # until the backend has been given the batch
        for item in gone:
            self._tell_cancelled(batch, item)

    def _as_reply(self, error: Exception) -> ServerError:
        if isinstance(error, InstanceDied):
            self._has_died = True
        if isinstance(error, ServerError):
            return error
        logger.error("model instance '%s' failed", self.name, exc_info=error)
        return Internal(f"model instance '{self.name}' failed: {type(error).__name__}: {error}")

    def _close_streams(self, streams: Iterable[ResponseStream], error: ServerError) -> None:
        for stream in list(streams):
            stream.close(error)

    def _end_stream(self, stream: ResponseStream, error: ServerError | None) -> None:
        stream.item.watcher = None  # as above
        self._streams.discard(stream)
        trace = stream.item.request.trace
        if trace is not None:
            trace.stamp(COMPUTE_END)
        self._report(StreamEnded(stream.item, error, stream.first_response))
