"""BLS inference calls: runs the requests that a worker makes to other models, in tasks of its link.

Flow: worker → [bls] → the server's models → [bls] → worker. A call ends with its request: when the caller's client has
gone, and when the worker gives it up. Texts are Triton's.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any

import trio

from backends.python.batches.batches import Batches
from backends.python.batches.open_batch import WHOLE_BATCH, OpenBatch
from backends.python.wire.channel import WorkerGone
from backends.python.wire.frames import BrokenFrame, Frame, decode_head, encode
from backends.python.wire.heads import ForgetHead, InferHead, TakenHead
from backends.python.wire.tensor_columns import column_of, frame_tensors
from backends.python.worker.trioton_worker.frames import (
    ALL,
    ERROR_KINDS,
    FORGET,
    INFER,
    RETURN,
    STREAM,
    TAKEN,
    UNTAKEN_RESPONSES,
    beyond_limit,
)
from backends.python.workers.link import WorkerLink
from backends.services import CallRefused, Execution, ModelCaller, ModelNotReady
from protocol.errors import Cancelled, Internal, InvalidArgument, ServerError, Unsupported, text_of, told
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.origin import CallersOrigin, Origin
from protocol.server_settings import Trace
from protocol.sync.wakeup import WaitingTasks

logger = logging.getLogger("trioton.backends.python")

_START_FLAG, _END_FLAG = 1, 2
_INTERNAL = ERROR_KINDS.index("INTERNAL")


@dataclass(eq=False, slots=True)
class _Call:
    """One call. `scope` is that of the task that runs it. `untaken` counts the responses of a stream that the model has
    not looked at; `taken` is there while the stream waits for that."""

    head: InferHead
    request: InferenceRequest
    batch: OpenBatch | None
    scope: trio.CancelScope | None = None
    is_cancelled: bool = False
    untaken: int = 0
    is_ignored: bool = False
    taken: trio.Event | None = None

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.scope is not None:
            self.scope.cancel()


class BlsCalls:
    """The calls of one worker, no more than `limit` at a time, with tensors of at most `byte_limit` in each answer."""

    def __init__(
        self, link: WorkerLink, batches: Batches, models: ModelCaller | None, *, limit: int, byte_limit: int
    ) -> None:
        self._link = link
        self._batches = batches
        self._models = models
        self._limit = limit
        self._byte_limit = byte_limit
        self._open: dict[int, _Call] = {}
        # Tasks that have ended a call wait for another: to wake one costs less than to begin one.
        self._waiting: deque[_Call] = deque()
        self._idle = WaitingTasks()
        link.handlers[INFER] = self._infer
        link.handlers[FORGET] = self._forget
        link.handlers[TAKEN] = self._take

    # Frames of the worker

    def _infer(self, frame: Frame) -> None:
        head = decode_head(frame, InferHead)
        if head.call in self._open or len(self._open) >= self._limit:
            raise BrokenFrame(f"it makes call {head.call} beside {len(self._open)} others")
        batch = self._batches.open.find(head.batch)
        if batch is not None and not WHOLE_BATCH <= head.index < len(batch.requests):
            raise BrokenFrame(f"it makes a call for request {head.index} of {len(batch.requests)}")
        request = InferenceRequest(
            head.model,
            frame_tensors(frame, self._link.schemas) or [],
            head.version,
            head.id,
            tuple(head.outputs),
            head.parameters,
            head.correlation_id,
            bool(head.flags & _START_FLAG),
            bool(head.flags & _END_FLAG),
            timeout_microseconds=head.timeout,
        )
        call = self._open[head.call] = _Call(head, request, batch)
        self._waiting.append(call)
        if not self._idle.wake_one():
            self._link.spawn(self._work)

    def _forget(self, frame: Frame) -> None:
        call = self._open.get(decode_head(frame, ForgetHead).call)
        if call is not None:
            call.cancel()

    def _take(self, frame: Frame) -> None:
        head = decode_head(frame, TakenHead)
        call = self._open.get(head.call)
        if call is None:
            return
        if head.count == ALL:
            call.is_ignored = True
        elif 0 < head.count <= call.untaken:
            call.untaken -= head.count
        else:
            raise BrokenFrame(f"it took {head.count} of {call.untaken} responses of a call")
        if call.taken is not None:
            call.taken.set()

    # Tasks

    async def _work(self) -> None:
        while True:
            cancelled = await self._work_until_cancelled()
            await self._send(RETURN, cancelled, Cancelled(f"the call of model '{cancelled.head.model}' was cancelled"))
            del cancelled

    async def _work_until_cancelled(self) -> _Call:
        """Run calls, each until the worker has its answer; one that is cancelled is returned, not answered yet. All are
        run in one scope: to enter one takes a good part of the time of a call."""
        call: _Call | None = None
        try:
            with trio.CancelScope() as scope:
                while True:
                    while not self._waiting:
                        await self._idle.wait()
                    call = self._waiting.popleft()
                    outcome = await self._run(call, scope)
                    if scope.cancel_called:
                        break
                    done, call = call, None
                    await self._send(RETURN, done, outcome)
                    del done, outcome  # a task that waits for the next one keeps no tensors
        except BaseException:  # nobody attends to the worker any more, or not yet again
            if call is not None:
                self._link.channel.post(encode(RETURN, _error(call, Internal("the call was given up"))))
            raise
        assert call is not None  # the scope is cancelled for a call only
        return call

    async def _run(self, call: _Call, scope: trio.CancelScope) -> InferenceResponse | ServerError | None:
        call.scope = scope
        batch = call.batch
        if batch is not None:
            batch.add_call(call, call.head.index)
        if call.is_cancelled:
            scope.cancel()
        try:
            return await self._outcome(call)
        finally:
            if batch is not None:
                batch.calls.pop(call, None)
            del self._open[call.head.call]

    async def _outcome(self, call: _Call) -> InferenceResponse | ServerError | None:
        """The response, or the last one; None where a stream ends without one."""
        if self._models is None:
            return Unsupported("the server has no other models")
        head, batch = call.head, call.batch
        execution = self._batches.execution_of(batch)
        trace = call.request.trace = _child_trace(head, batch)
        call.request.origin = _origin(head, batch)
        try:
            if head.stream:
                return await self._stream(self._models, call, execution)
            if self._models.is_decoupled(head.model, head.version):
                return Internal(_IS_DECOUPLED.format(model=head.model))
            return await self._models.infer(call.request, execution)
        except ModelNotReady as error:
            return type(error)(_REFUSED.format(model=head.model, message=_NOT_READY.format(model=head.model)))
        except CallRefused as refused:
            return type(refused.error)(_REFUSED.format(model=head.model, message=refused.message))
        except ServerError as error:
            return error
        except Exception as error:
            logger.exception("%s: a call of model '%s' failed", self._link.name, head.model)
            return Internal(text_of(error))
        finally:
            if trace is not None:
                trace.end()

    async def _stream(self, models: ModelCaller, call: _Call, execution: Execution | None) -> InferenceResponse | None:
        last: InferenceResponse | None = None

        async def respond(response: InferenceResponse) -> None:
            nonlocal last
            if response.is_final:
                last = response
                return
            while call.untaken >= UNTAKEN_RESPONSES and not call.is_ignored:
                call.taken = trio.Event()
                await call.taken.wait()
            if not call.is_ignored:
                call.untaken += 1
                await self._send(STREAM, call, response)

        await models.infer_stream(call.request, respond, execution)
        return last

    async def _send(self, kind: int, call: _Call, outcome: InferenceResponse | ServerError | None) -> None:
        number = call.head.call
        try:
            if isinstance(outcome, InferenceResponse):
                column = column_of((outcome.outputs,), self._link.schemas)
                if column.size > self._byte_limit:
                    text = beyond_limit(f"the answer of model '{call.head.model}' takes", column.size, self._byte_limit)
                    await self._link.channel.send(encode(kind, _error(call, InvalidArgument(text))))
                    return
                head: dict[str, Any] = {"call": number}
                if outcome.parameters:
                    head["parameters"] = outcome.parameters
                frame = column.frame(kind, head)
                await self._link.channel.send(frame.start, frame.body, frame.body_size)
            else:
                await self._link.channel.send(
                    encode(kind, {"call": number} if outcome is None else _error(call, outcome))
                )
        except WorkerGone:
            pass


def _origin(head: InferHead, batch: OpenBatch | None) -> Origin | None:
    """That of the calling request, where it is known which one that is."""
    if batch is None or (head.index == WHOLE_BATCH and len(batch.requests) != 1):
        return None
    asked = batch.requests[0 if head.index == WHOLE_BATCH else head.index]
    return None if asked.origin is None else CallersOrigin(asked.origin, asked.id)


def _child_trace(head: InferHead, batch: OpenBatch | None) -> Trace | None:
    """A child trace of the calling request: the one whose trace the model has passed on, or the only one."""
    if batch is None:
        return None
    if head.index == WHOLE_BATCH:
        trace = batch.requests[0].trace if len(batch.requests) == 1 else None
    else:
        trace = batch.requests[head.index].trace if head.is_traced else None
    return None if trace is None else trace.child(head.model)


def _error(call: _Call, error: ServerError) -> dict[str, Any]:
    told(error)
    code = ERROR_KINDS.index(error.kind) if error.kind in ERROR_KINDS else _INTERNAL
    return {"call": call.head.call, "error": [code, error.message]}


_REFUSED = "Model {model} - Error when running inference: {message}"
_NOT_READY = "Failed for execute the inference request. Model '{model}' is not ready."
_IS_DECOUPLED = (
    "Model {model} - Error when running inference: Model {model} is using the decoupled. The current BLS request call "
    "doesn't support models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' "
    "or 'async_exec' calls for decoupled models.'"
)
