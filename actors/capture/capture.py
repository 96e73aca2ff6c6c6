"""Capture: the actor that collects captured calls, and has them written by a thread.

Flow: capturing core → [capture] → in a thread: `writer`. Started by the server before its edges, and cancelled after
them: it then writes what is left, within a bounded time. A disk or bucket that hangs holds one thread; what comes
meanwhile waits as long as there is memory for it, and is then dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress

import trio

from actors.capture.captured_call import CapturedCall, Memory, size_of
from actors.capture.sampling import CaptureSampling
from actors.capture.settings import CaptureSettings
from actors.capture.writer import CaptureWriter
from protocol.errors import ServerError
from protocol.messages import InferenceRequest
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger("trioton.capture")

# Calls that the thread takes at a time.
_AT_ONCE = 256
# What is left at the end may take so long.
GRACE_SECONDS = 10.0
_MEMORY, _WRITE = "memory", "write"


class CannotCapture(Exception):
    """Nothing can be written where captured calls are to go, or not in that format."""


class Capture:
    """Attributes:
    written: how many calls are in files.
    dropped: how many are not, by why: there was no "memory" for them, or the "write" of their file has failed.
    """

    def __init__(self, settings: CaptureSettings, writer: CaptureWriter) -> None:
        self._sampling = CaptureSampling(settings.share, settings.shares)
        self._memory = Memory(settings.memory_bytes)
        self._writer = writer
        self._finished: list[CapturedCall] = []
        self._has_finished = Wakeup()
        self._is_running = False
        self._buffered = 0  # bytes of the writer that are counted
        # A write that was given up still holds it.
        self._one_writer = trio.CapacityLimiter(1)
        self.written = 0
        self.dropped: Counter[str] = Counter({_MEMORY: 0, _WRITE: 0})

    def begin(self, request: InferenceRequest) -> CapturedCall | None:
        """A request has come; None where it is not captured."""
        if not self._is_running or not self._sampling.takes(request.model_name):
            return None
        size = size_of(request.inputs, request.parameters)
        if not self._memory.has_taken(size):
            self.dropped[_MEMORY] += 1
            return None
        try:
            return CapturedCall(request, self._memory, size, self._take)
        except Exception:  # no request fails because of its capture
            logger.exception("a request to model '%s' could not be captured", request.model_name)
            self._memory.held -= size
            return None

    def _take(self, call: CapturedCall) -> None:
        if not self._finished:
            self._has_finished.wake()
        self._finished.append(call)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write calls as they end. Raises CannotCapture before it is started."""
        try:
            await trio.to_thread.run_sync(self._writer.open)
        except (OSError, ServerError) as error:
            raise CannotCapture(str(error)) from None
        self._is_running = True
        try:
            task_status.started()
            while True:
                await self._wait()
                await self._write(self._next())
        finally:
            self._is_running = False
            with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE_SECONDS) as closing:
                while self._finished:
                    await self._write(self._next())
                await self._write([], is_last=True)
            if closing.cancelled_caught:
                logger.error("the last captured requests could not be written within %g s", GRACE_SECONDS)

    async def _wait(self) -> None:
        if self._finished:
            return
        wake_at = self._writer.due_at
        with trio.move_on_at(wake_at):
            await self._has_finished.wait()

    def _next(self) -> list[CapturedCall]:
        calls, self._finished = self._finished[:_AT_ONCE], self._finished[_AT_ONCE:]
        return calls

    async def _write(self, calls: list[CapturedCall], *, is_last: bool = False) -> None:
        """Cancelled, calls that the thread has not taken wait again; it goes on with those that it has."""
        now = trio.current_time()
        given = [calls]  # emptied by the one of both who takes them

        def write() -> None:
            with suppress(IndexError):
                self._writer.take(given.pop(), now)
            self._writer.flush(now, is_last=is_last)

        try:
            await trio.to_thread.run_sync(write, abandon_on_cancel=True, limiter=self._one_writer)
        except Exception:  # a defect, which costs these calls and not the server
            logger.exception("captured requests could not be written")
            self.dropped[_WRITE] += len(calls)
        finally:
            if given:
                self._finished[:0] = given.pop()
            else:
                self._memory.held -= sum(call.size for call in calls)
        self._count()

    def _count(self) -> None:
        """What the thread has done, when it has ended."""
        writer = self._writer
        self._memory.held += writer.buffered_bytes - self._buffered
        self._buffered = writer.buffered_bytes
        self.written += writer.take_written()
        lost, problem = writer.take_lost()
        if lost:
            self.dropped[_WRITE] += lost
            logger.error("%d captured requests are lost: %s", lost, problem)
