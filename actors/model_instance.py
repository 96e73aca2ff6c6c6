"""Model instance: one loaded copy of a model, running one batch at a time.

Flow: scheduler → [model instance] → backend → [model instance] → scheduler.
Started and owned by the model actor; knows only its backend and where to say that a batch is done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from actors.messages import (
    BatchDone,
    Execute,
    InstanceAddress,
    InstanceGone,
    InstanceReady,
    Reply,
    SchedulerAddress,
    StreamEnded,
)
from actors.response_stream import ResponseStream
from backends.interface import Backend, BatchTiming, InstanceDied
from protocol.errors import Internal, ServerError, Unavailable

logger = logging.getLogger("trioton.model_instance")

# How long an instance may take to free what it holds.
UNLOAD_GRACE_SECONDS = 10.0


@dataclass(eq=False, slots=True)
class ModelInstance:
    """Closing its address means finish and unload; cancelling means stop now, and unload within a bounded time."""

    name: str
    backend: Backend
    scheduler: SchedulerAddress
    is_decoupled: bool = False
    _streams: set[ResponseStream] = field(default_factory=set, init=False)
    _is_executing: bool = field(default=False, init=False)
    _has_died: bool = field(default=False, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load, serve, unload. A failed load is raised; returns when closed or when the backend has died."""
        try:
            await self.backend.load()
            await self._serve(task_status)
        finally:
            await self._unload()

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        to_inbox, inbox = trio.open_memory_channel[Execute](1)
        address = InstanceAddress(self.name, to_inbox)
        with inbox:
            try:
                self.scheduler.tell(InstanceReady(address))
                task_status.started()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, nursery.cancel_scope)
                    execute = self._execute_decoupled if self.is_decoupled else self._execute
                    async for message in inbox:
                        await execute(address, message)
                        if self._has_died:
                            break
                    nursery.cancel_scope.cancel()
            finally:
                self._report(InstanceGone(address))
                self._close_streams(self._streams, InstanceDied(f"model instance '{self.name}' was stopped"))

    async def _watch(self, serving: trio.CancelScope) -> None:
        """End the instance when its backend dies while idle; during a batch `execute` sees the death itself."""
        await self.backend.wait_died()
        self._has_died = True
        if not self._is_executing:
            serving.cancel()

    async def _unload(self) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNLOAD_GRACE_SECONDS) as unloading:
            try:
                await self.backend.unload()
            except Exception:  # an instance that cannot be freed must not take the server down
                logger.exception("model instance '%s' failed to unload", self.name)
        if unloading.cancelled_caught:
            logger.error("model instance '%s' did not unload within %g s", self.name, UNLOAD_GRACE_SECONDS)

    def _report(self, message: BatchDone | InstanceGone | StreamEnded) -> None:
        with suppress(Unavailable):  # a scheduler that has ended has answered for all that it had given out
            self.scheduler.tell(message)

    async def _execute(self, address: InstanceAddress, message: Execute) -> None:
        """Run a batch and report it on every path."""
        batch = [item for item in message.batch if not item.is_cancelled]
        replies: list[Reply] = [InstanceDied(f"model instance '{self.name}' was stopped")] * len(batch)
        timing: BatchTiming | None = None
        started = trio.current_time()
        self._is_executing = True
        try:
            if batch:
                result = await self.backend.execute([item.request for item in batch])
                if len(result.responses) != len(batch):
                    raise Internal(
                        f"model instance '{self.name}' gave {len(result.responses)} responses to {len(batch)} requests"
                    )
                replies = list(result.responses)
                timing = result.timing
        except Exception as error:  # never BaseException: Cancelled must pass
            replies = [self._as_reply(error)] * len(batch)
        finally:
            self._is_executing = False
            self._report(BatchDone(address, batch, replies, started, timing, is_alive=not self._has_died))

    async def _execute_decoupled(self, address: InstanceAddress, message: Execute) -> None:
        """Hand a batch over and report it on every path; its responses come by their streams, also later."""
        streams = [ResponseStream(item, self._end_stream) for item in message.batch]
        self._streams.update(streams)
        timing: BatchTiming | None = None
        started = trio.current_time()
        self._is_executing = True
        try:
            timing = await self.backend.execute_decoupled([item.request for item in message.batch], streams)
        except Exception as error:
            self._close_streams(streams, self._as_reply(error))
        finally:
            self._is_executing = False
            self._report(BatchDone(address, message.batch, None, started, timing, is_alive=not self._has_died))

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
        self._streams.discard(stream)
        self._report(StreamEnded(stream.item, error, stream.first_response))
