"""Model instance: one loaded copy of a model, running one batch at a time.

Flow: scheduler → [model instance] → backend → [model instance] → scheduler.
Started and owned by the model actor; knows only its backend and where to say that a batch is done.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.instance.rate_limiter import InstanceLimit
from actors.instance.response_stream import ResponseStream
from actors.instance.slot import BatchSlot, RunningBatch, running_batch
from actors.instance.warmup import warm_up
from actors.mail.messages import (
    BatchDone,
    Execute,
    InstanceGone,
    InstanceReady,
    QueuedRequest,
    SchedulerAddress,
    StreamEnded,
)
from actors.mail.reply_slot import Reply
from actors.metrics.response_statistics import ResponseStatistics
from actors.tracing.stamps import COMPUTE_END, begin_compute, end_compute, traces_of
from backends.interface import Backend, BatchResult, BatchTiming, InstanceDied, Started
from protocol.errors import Internal, ServerError, Unavailable, text_of
from protocol.failures import CallbackFailures
from repository.warmup_data import WarmupSample

logger = logging.getLogger("trioton.model_instance")

_NO_TIME = BatchTiming(0, 0, 0)
# Batches that run within a call follow one another for so long, before all else has its turn.
AT_ONCE_SECONDS = 0.0005


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
    failures: CallbackFailures = field(default_factory=CallbackFailures)
    # Loaded until then, and never told of to the scheduler; None for one that takes requests.
    passive_until: trio.Event | None = None
    # Whether a batch has come to its end: a restart is then likely to help.
    has_worked: bool = field(default=False, init=False)
    _places: set[BatchSlot] = field(default_factory=set, init=False)
    # Those whose last batch runs: the instance has another one for the next.
    _freed: set[BatchSlot] = field(default_factory=set, init=False)
    # Batches that no task waits for.
    _begun: set[RunningBatch] = field(default_factory=set, init=False)
    _streams: set[ResponseStream] = field(default_factory=set, init=False)
    _serving: trio.CancelScope | None = field(default=None, init=False)
    _hearing: trio.Nursery | None = field(default=None, init=False)
    _executing: int = field(default=0, init=False)
    _last_end: float = field(default=0.0, init=False)
    _has_died: bool = field(default=False, init=False)
    _is_stopping: bool = field(default=False, init=False)
    _computes: bool = field(default=False, init=False)  # its backend has computed a batch within `begin`
    # Within `_loop`, which runs what is given meanwhile.
    _is_looping: bool = field(default=False, init=False)
    _following: deque[tuple[BatchSlot, Execute]] = field(default_factory=deque, init=False)
    _now: Callable[[], float] = field(default=trio.current_time, init=False)  # as `scheduler_loop`'s

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
        self._serving = serving
        self._now = trio.lowlevel.current_clock().current_time
        try:
            async with trio.open_nursery() as self._hearing:
                self._open_place(self._hearing)
                task_status.started()
        finally:
            self._is_stopping = True
            while self._begun:
                self._end(self._begun.pop(), None)
            for place in self._places:
                self._report(InstanceGone(place.address))
                place.close()
            self._close_streams(self._streams, InstanceDied(f"model instance '{self.name}' was stopped"))

    def _open_place(self, hearing: trio.Nursery) -> None:
        def prefetch(place: BatchSlot) -> None:
            hearing.start_soon(self._take_ahead, place)

        begin = None if self.limit is not None or self.is_decoupled else self._begin
        place = BatchSlot(self.name, begin, self._free, prefetch if self.runs_ahead else None)
        self._places.add(place)
        self.scheduler.send_nowait(InstanceReady(place.address))
        if self.limit is None:
            hearing.start_soon(self._hear, place)
        else:
            hearing.start_soon(self._hear_in_turns, place, self.limit)

    def _free(self, place: BatchSlot) -> None:
        """The instance can take a batch beside that of a place: in another one, and this one ends with its batch."""
        if place not in self._freed and self._hearing is not None:
            self._freed.add(place)
            try:
                self._open_place(self._hearing)
            except Unavailable:
                pass  # the scheduler has ended
            except Exception as error:
                self._note(error, "it has no place for another batch until its present one has ended")
                self._freed.discard(place)

    async def _hear(self, place: BatchSlot) -> None:
        """Run the batches that come to a place and that could not be begun by a call, until it is closed."""
        while (message := await place.receive()) is not None:
            place.is_busy = True
            await self._run_batch(place, message, place.free)
            del message  # a place that waits for the next one keeps no tensors, and no client's shared memory

    async def _hear_in_turns(self, place: BatchSlot, limit: InstanceLimit) -> None:
        """As `_hear`, each batch when it is the instance's turn; one that is there when a batch ends waits in line
        before what that one held goes to anybody else."""
        while (message := await place.receive()) is not None:
            async with limit:
                while message is not None:
                    place.is_busy = True
                    await self._run_batch(place, message, None)
                    message = place.receive_nowait()
                    if message is not None:
                        await limit.renew()

    def _after_batch(self, place: BatchSlot) -> None:
        if self._has_died and self._serving is not None:
            self._serving.cancel()
        if place in self._freed:
            self._freed.remove(place)
            self._places.discard(place)
            place.close()
        elif not self._has_died and not self._is_stopping:
            try:
                place.go_on()
            except Exception as error:  # the batch that has ended is to be reported all the same
                self._note(error, "its next batch could not be begun, and is left to its task")

    async def _run_batch(self, place: BatchSlot, message: Execute, free: Callable[[], None] | None) -> None:
        if self.is_decoupled:
            await self._execute_decoupled(place, message)
        else:
            await self._execute(place, message, free)

    async def _take_ahead(self, place: BatchSlot) -> None:
        """Give the backend its next batch while it runs one."""
        await trio.lowlevel.checkpoint()  # until it has been given the one before, so that batches keep their order
        message = place.receive_nowait()
        if message is not None:  # else it was taken in turn, the one before has ended
            await self._run_batch(place, message, None)

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
        try:
            self.scheduler.send_nowait(message)
        except Unavailable:  # it has ended, and answered for all that it had given out
            return

    # Batches that are begun by a call.

    def _begin(self, place: BatchSlot, message: Execute) -> None:
        """Begin a batch. One that comes while the end of a computed one is reported follows it: whom that answers
        does not wait for this one, and calls do not nest."""
        if self._is_looping:
            self._following.append((place, message))
            return
        ended = self._call(place, message)
        if ended is not None:
            self._loop(ended)

    def _loop(self, ended: RunningBatch | None) -> None:
        """Report the end of a batch, and run what the scheduler gives for it: for half a millisecond, then all else has
        its turn."""
        started = time.monotonic_ns() if ended is None else ended.begun
        self._is_looping = True
        try:
            while ended is not None or self._following:
                if ended is not None:
                    self._end(ended, ended.result)
                    ended = None
                elif time.monotonic_ns() - started < AT_ONCE_SECONDS * 1e9:
                    ended = self._call(*self._following.popleft())
                else:
                    return
        finally:
            self._is_looping = False
            if self._following and self._hearing is not None:
                with suppress(RuntimeError):  # the nursery has closed: the instance has ended
                    self._hearing.start_soon(self._loop_on)

    async def _loop_on(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._following:
            self._loop(self._call(*self._following.popleft()))

    def _call(self, place: BatchSlot, message: Execute) -> RunningBatch | None:
        """Give the backend a batch, or leave that to the place's task; the batch if it has ended, with its result. What
        is raised is the batch's."""
        if self._is_stopping:
            place.leave(message)
            return None
        backend = self.backend
        running = running_batch(place, message, self._now())
        running.begun = time.monotonic_ns()
        begun: BatchResult | Started | None = None
        try:
            if message.keeps_rows:
                self._tell_gone(running.batch)
            if not running.batch:
                running.result = BatchResult((), _NO_TIME)
            else:
                free = place.free if backend.can_overlap else None
                begun = backend.begin(running.requests, partial(self._end_begun, running), free)
                if begun is None:
                    place.leave(message)
                    return None
        except Exception as error:
            running.result = self._defect(error)
        self._note_begun(running, running.begun)
        if isinstance(begun, BatchResult):
            self._computes = True
            running.result = begun
        if running.result is not None:
            return running
        self._begun.add(running)
        if message.keeps_rows:
            self._tell_gone(running.batch)
        return None

    def _defect(self, error: Exception) -> ServerError:
        """The end of a batch whose beginning has raised this, without a traceback: that would know the batch, and keep
        all tensors until it is collected."""
        if isinstance(error, ServerError):
            return error.with_traceback(None)
        self._note(error, "a batch could not be begun, and fails")
        return Internal(f"model instance '{self.name}' could not begin to run the request")

    def _end_begun(self, running: RunningBatch, result: BatchResult | Exception) -> None:
        """What `begin` has begun has ended."""
        if running not in self._begun:  # the instance was stopped; or `begin` itself says so, which reports it then
            running.result = result
            return
        self._begun.remove(running)
        if self._computes and not self._is_looping:
            running.result = result
            self._loop(running)
        else:
            self._end(running, result)

    def _note(self, error: Exception, what: str) -> None:
        self.failures.note("backend", error, f"model instance '{self.name}': {what}")

    # Batches that a task waits for.

    async def _execute(self, place: BatchSlot, message: Execute, free: Callable[[], None] | None) -> None:
        """Run a batch and report it on every path."""
        running = running_batch(place, message, self._now())
        batch, requests = running.batch, running.requests
        self._note_begun(running)
        result: BatchResult | Exception | None = None
        try:
            if message.keeps_rows:
                self._tell_gone(batch, and_soon=True)
            if not batch:
                result = BatchResult((), _NO_TIME)
            elif free is not None and self.backend.can_overlap:
                result = await self.backend.execute_overlapping(requests, free)
            else:
                result = await self.backend.execute(requests)
        except Exception as error:  # never BaseException: Cancelled must pass
            result = error
        finally:
            self._end(running, result)
            del result  # its traceback knows this frame: a circle, which would keep all tensors until it is collected

    def _note_begun(self, running: RunningBatch, started: int | None = None) -> None:
        if running.traces:
            self._trace(begin_compute, running.traces, started)
        watcher = partial(self._tell_cancelled, running.batch)
        for item in running.batch:
            item.watcher = watcher
        self._executing += 1

    def _end(self, running: RunningBatch, result: BatchResult | Exception | None) -> None:
        """Report a batch, which has ended with this; with None the instance was stopped."""
        batch, place = running.batch, running.place
        self._executing -= 1
        replies: Sequence[Reply]
        timing: BatchTiming | None = None
        if isinstance(result, BatchResult) and len(result.responses) == len(batch):
            replies, timing = result.responses, result.timing
            self.has_worked = True
        elif result is None:
            self._is_stopping = True
            replies = [InstanceDied(f"model instance '{self.name}' was stopped")] * len(batch)
        else:
            replies = [self._as_reply(self._failure(result, len(batch)))] * len(batch)
        if running.traces:
            self._trace(end_compute, running.traces, timing)
        started = running.started
        if self.runs_ahead:
            started = max(started, self._last_end)  # taken ahead, it began when the batch before it had ended
            self._last_end = self._now()
        for item in batch:
            item.watcher = None  # it knows the batch: a circle, which would keep all tensors until it is collected
        is_alive = not self._has_died and place not in self._freed
        self._after_batch(place)
        self._report(BatchDone(place.address, running.message, batch, replies, started, timing, is_alive=is_alive))

    def _trace(self, stamp: Callable[..., None], *arguments: object) -> None:
        """No answer depends on it."""
        try:
            stamp(*arguments)
        except Exception as error:
            self._note(error, "a trace could not be stamped")

    def _failure(self, result: BatchResult | Exception, size: int) -> Exception:
        if isinstance(result, Exception):
            return result
        return Internal(f"model instance '{self.name}' gave {len(result.responses)} responses to {size} requests")

    async def _execute_decoupled(self, place: BatchSlot, message: Execute) -> None:
        """Hand a batch over and report it on every path; its responses come by their streams, also later."""
        streams = [ResponseStream(item, self._end_stream, self.responses, self.is_iterative) for item in message.batch]
        self._streams.update(streams)
        timing: BatchTiming | None = None
        started = trio.current_time()
        begin_compute(traces_of(message.batch))
        watcher = partial(self._tell_cancelled, message.batch)
        for item in message.batch:
            item.watcher = watcher
        self._executing += 1
        try:
            timing = await self.backend.execute_decoupled([item.request for item in message.batch], streams)
            self.has_worked = True
        except Exception as error:
            self._close_streams(streams, self._as_reply(error))
        except BaseException:
            self._is_stopping = True
            raise
        finally:
            self._executing -= 1
            running = [stream.item for stream in streams if stream in self._streams]
            # For others it ended with their last response.
            end_compute(traces_of(running), timing, has_answers=False)
            is_alive = not self._has_died
            self._after_batch(place)
            self._report(BatchDone(place.address, message, message.batch, None, started, timing, is_alive=is_alive))

    def _tell_cancelled(self, batch: Sequence[QueuedRequest], item: QueuedRequest) -> None:
        """The watcher of a batch's requests."""
        try:
            if all(each.is_cancelled for each in batch):  # those too that had gone before the batch began
                for each in batch:
                    self.backend.cancel(each.request)
            else:
                self.backend.cancel(item.request)
        except Exception as error:  # nobody waits for the answer
            self._note(error, "the model could not be told that a caller has gone")

    def _tell_gone(self, batch: Sequence[QueuedRequest], *, and_soon: bool = False) -> None:
        """Of callers that had gone before their batch began, for whom it runs all the same."""
        gone = [item for item in batch if item.is_cancelled and not item.is_for_nobody]
        for item in gone:
            self._tell_cancelled(batch, item)
        if gone and and_soon and self._hearing is not None:
            self._hearing.start_soon(self._tell_gone_soon, batch)

    async def _tell_gone_soon(self, batch: Sequence[QueuedRequest]) -> None:
        await trio.lowlevel.checkpoint()  # until the backend has been given the batch
        if batch[0].watcher is not None:  # it still runs
            self._tell_gone(batch)

    def _as_reply(self, error: Exception) -> ServerError:
        if isinstance(error, InstanceDied):
            self._has_died = True
        if isinstance(error, ServerError):
            return error
        logger.error("model instance '%s' failed", self.name, exc_info=error)
        return Internal(f"model instance '{self.name}' failed: {text_of(error)}")

    def _close_streams(self, streams: Iterable[ResponseStream], error: ServerError) -> None:
        for stream in list(streams):
            stream.close(error)

    def _end_stream(self, stream: ResponseStream, error: ServerError | None) -> None:
        stream.item.watcher = None  # as above
        self._streams.discard(stream)
        trace = stream.item.request.trace
        if trace is not None:
            self._trace(trace.stamp, COMPUTE_END)
        self._report(StreamEnded(stream.item, error, stream.first_response))
