"""Batch runner: gives batches to a backend and reports their ends to the scheduler.

Flow: scheduler → batch slot → [batch runner] → backend → [batch runner] → scheduler. Owned by the model instance, whose
nursery has its tasks. A batch is begun by a call (`Backend.begin`); what a call cannot begin is awaited by the slot's
task (`run`).

Each batch is reported once: with its responses, with one error for all of it, or as stopped. An exception of the
backend costs its batch. Cancelled, `run` reports its batch as stopped and lets Cancelled pass; `stop` does so for the
batches that no task awaits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from actors.instance.cancellation import CancellationNotices
from actors.instance.slot import BatchSlot, RunningBatch, running_batch
from actors.mail.messages import BatchDone, Execute, SchedulerAddress, SchedulerMessage
from actors.mail.reply_slot import Reply
from actors.tracing.stamps import begin_compute, end_compute, tell_batch
from backends.interface import STARTED, Backend, BatchResult, BatchTiming, InstanceDied
from protocol.errors import Internal, ServerError, Unavailable, text_of
from protocol.failures import CallbackFailures
from protocol.log.tags import tagged

logger = logging.getLogger("trioton.model_instance")

_NO_TIME = BatchTiming(0, 0, 0)
# How long computed batches may follow one another without a turn of Trio's loop.
MOST_CALL_SECONDS = 0.0005


@dataclass(eq=False, slots=True)
class BatchRunner:
    """Runs batches of one backend.

    `slot_ended` is called after each batch, before its report, and says whether the slot takes another one.
    `runs_ahead` says that a batch may be given to the backend while another runs. `is_stopping` is set once the
    instance takes no more, `has_died` once the backend says that it has; `has_worked` when a batch has ended well.
    """

    name: str
    backend: Backend
    scheduler: SchedulerAddress
    failures: CallbackFailures
    slot_ended: Callable[[BatchSlot], bool]
    runs_ahead: bool = False
    nursery: trio.Nursery | None = field(default=None, init=False)
    now: Callable[[], float] = field(default=trio.current_time, init=False)
    has_worked: bool = field(default=False, init=False)
    has_died: bool = field(default=False, init=False)
    is_stopping: bool = field(default=False, init=False)
    executing: int = field(default=0, init=False)  # batches that the backend has
    notices: CancellationNotices = field(init=False)
    _death: InstanceDied | None = field(default=None, init=False)
    _begun: set[RunningBatch] = field(default_factory=set, init=False)  # those that no task awaits
    _last_end: float = field(default=0.0, init=False)
    _computes: bool = field(default=False, init=False)  # the backend has computed a batch within `begin`
    _is_looping: bool = field(default=False, init=False)
    _following: deque[tuple[BatchSlot, Execute]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.notices = CancellationNotices(
            self.backend, partial(self.note, what="the model could not be told that a caller has gone")
        )

    def stop(self) -> None:
        """Report what was begun and has not ended; ends that come later are dropped."""
        self.is_stopping = True
        while self._begun:
            self._end(self._begun.pop(), None)

    def report(self, message: SchedulerMessage) -> None:
        try:
            self.scheduler.send_nowait(message)
        except Unavailable:  # it has ended, and has answered all that it had given out
            return

    def note(self, error: Exception, what: str) -> None:
        self.failures.note("backend", error, f"model instance '{self.name}': {what}")

    # Batches that a call begins

    def begin(self, slot: BatchSlot, message: Execute) -> None:
        """Begin a batch. While the loop below reports another one's end, it is only queued: the callers which that
        answers do not wait for this batch, and calls do not nest."""
        if self._is_looping:
            self._following.append((slot, message))
            return
        ended = self._call(slot, message)
        if ended is not None:
            self._loop(ended)

    def _loop(self, ended: RunningBatch | None) -> None:
        """Report a batch that has ended, then run and report what the scheduler gives for it, and so on; after half a
        millisecond the rest is left to the slots' tasks, so that everything else has its turn."""
        started = time.monotonic_ns() if ended is None else ended.begun_ns
        self._is_looping = True
        try:
            while ended is not None or self._following:
                if ended is not None:
                    self._end(ended, ended.result)
                    ended = None
                elif time.monotonic_ns() - started < MOST_CALL_SECONDS * 1e9:
                    ended = self._call(*self._following.popleft())
                else:
                    return
        finally:
            self._is_looping = False
            while self._following:
                slot, message = self._following.popleft()
                slot.put_off(message)

    def _call(self, slot: BatchSlot, message: Execute) -> RunningBatch | None:
        """Have the backend begin a batch, or leave it to the slot's task. Returns the batch if it has ended, with its
        result: computed, refused, or with nobody left to run it for."""
        if self.is_stopping:
            slot.leave_to_task(message)
            return None
        running = running_batch(slot, message, self.now())
        running.begun_ns = time.monotonic_ns()
        try:
            if message.keeps_rows:
                self.notices.cancelled_before(running.batch)
            if running.batch:
                free = slot.free if self.backend.can_overlap else None
                begun = self.backend.begin(running.requests, partial(self._end_begun, running), free)
            else:
                begun = BatchResult((), _NO_TIME)
        except Exception as error:
            running.result = self._refusal(error)
        else:
            if begun is None:
                slot.leave_to_task(message)
                return None
            if begun is not STARTED:
                running.result = begun
                if running.batch:
                    self._computes = True
        self._note_begun(running, running.begun_ns)
        if running.result is not None:
            return running
        self._begun.add(running)
        if message.keeps_rows:
            self.notices.cancelled_before(running.batch)
        return None

    def _refusal(self, error: Exception) -> ServerError:
        """The result of a batch for which `begin` has raised. The traceback goes: it refers to the batch, and would
        keep all tensors until it is collected."""
        if isinstance(error, ServerError):
            return error.with_traceback(None)
        self.note(error, "a batch could not be begun, and fails")
        return Internal(f"model instance '{self.name}' could not begin to run the request")

    def _end_begun(self, running: RunningBatch, result: BatchResult | Exception) -> None:
        """The callback of a batch that `begin` has started."""
        if running not in self._begun:  # stopped; or called too early, within `begin`, whose caller takes it from here
            running.result = result
            return
        self._begun.remove(running)
        if self._computes and not self._is_looping:
            running.result = result
            self._loop(running)
        else:
            self._end(running, result)

    # Batches that a task awaits

    async def run(self, slot: BatchSlot, message: Execute, free: Callable[[], None] | None) -> None:
        """Await the backend for one batch; `free` is called when it can take another one beside it."""
        running = running_batch(slot, message, self.now())
        batch, requests = running.batch, running.requests
        self._note_begun(running)
        result: BatchResult | Exception | None = None
        try:
            if message.keeps_rows and self.notices.cancelled_before(batch) and self.nursery is not None:
                self.nursery.start_soon(self.notices.repeat_soon, batch)
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
            del result  # its traceback refers to this frame, and would keep all tensors until it is collected

    # Both

    def _note_begun(self, running: RunningBatch, started: int | None = None) -> None:
        if running.traces:
            self.trace(begin_compute, running.traces, started)
            self.trace(tell_batch, running.traces, self.name, sum(item.batch_size for item in running.batch))
        if running.result is None:  # else there is nothing to be told of a caller that goes
            watcher = partial(self.notices.cancelled, running.batch)
            for item in running.batch:
                item.watcher = watcher
        self.executing += 1

    def _end(self, running: RunningBatch, result: BatchResult | Exception | None) -> None:
        """Report a batch that has ended with this; None means that it was stopped."""
        batch, slot = running.batch, running.slot
        self.executing -= 1
        replies: Sequence[Reply]
        timing: BatchTiming | None = None
        if isinstance(result, BatchResult) and len(result.responses) == len(batch):
            replies, timing = result.responses, result.timing
            self.has_worked = True
        elif result is None:
            self.is_stopping = True
            replies = [self.why_stopped()] * len(batch)
        else:
            replies = [self.as_reply(self._failure(result, len(batch)))] * len(batch)
        if running.traces:
            self.trace(end_compute, running.traces, timing)
        started = running.started
        if self.runs_ahead:
            started = max(started, self._last_end)  # given ahead, it began when the one before it had ended
            self._last_end = self.now()
        for item in batch:
            item.watcher = None  # it refers to the batch, and would keep all tensors until it is collected
        is_alive = self.slot_ended(slot)
        message, has_died = running.message, self.has_died
        self.report(BatchDone(slot.address, message, batch, replies, started, timing, is_alive, has_died))

    def _failure(self, result: BatchResult | Exception, size: int) -> Exception:
        if isinstance(result, Exception):
            return result
        return Internal(f"model instance '{self.name}' gave {len(result.responses)} responses to {size} requests")

    def as_reply(self, error: Exception) -> ServerError:
        """What callers get for an exception of the backend, which may say that the instance has died."""
        if isinstance(error, InstanceDied):
            self.has_died = True
            self._death = self._death or error
        if isinstance(error, ServerError):
            return error
        logger.error("model instance '%s' failed", self.name, exc_info=error, extra=tagged(instance=self.name))
        return Internal(f"model instance '{self.name}' failed: {text_of(error)}")

    def why_stopped(self) -> InstanceDied:
        """What callers get whose batches are stopped: how the instance has died, if another batch was told that."""
        return self._death or InstanceDied(f"model instance '{self.name}' was stopped")

    def trace(self, stamp: Callable[..., None], *arguments: object) -> None:
        """Stamp traces; no answer depends on that."""
        try:
            stamp(*arguments)
        except Exception as error:
            self.note(error, "a trace could not be stamped")
