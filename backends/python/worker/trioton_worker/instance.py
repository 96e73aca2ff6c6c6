"""Model instance in the worker: owns the `TritonPythonModel` object and runs its batches."""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any, Sequence

from . import device
from .batch import (
    Answer,
    BadResult,
    Segments,
    check_responses,
    executed,
    failed_batch,
    note_kept,
    received_requests,
)
from .connection import Frame, Head
from .errors import TritonModelException, describe, format_traceback
from .event_loop import BackgroundLoop
from .frames import CHECK, CHECKED, COROUTINE
from .logger import Logger
from .making import Maker
from .records import RELEASE_RESCHEDULE, RequestHeader, RequestRecord
from .requests import model_requests
from .responses import InferenceResponse, failed_response
from .session import LiveBatch, Session, enter_session, leave_session, set_executing
from .tensors import on_device


class Instance:
    """Batches come one at a time from the session's thread; those whose `execute` is a coroutine go on beside each
    other."""

    def __init__(self, session: Session, maker: Maker) -> None:
        self._session = session
        self._maker = maker
        self._segments = Segments()
        self._loop = BackgroundLoop(session.switchboard, session.break_off)
        self._model: Any = None
        self._path = ""
        self._name = ""
        self._plain = RequestHeader(frozenset())  # that of a request of which the server says nothing
        self._can_share = False
        self._is_async = False  # the server knows that `execute` is a coroutine
        self._input_device: int | None = None  # the GPU that inputs are copied to
        session.switchboard.handlers[CHECK] = self._check

    def initialize(self, head: Head) -> Head:
        """Returns what the server must know of the model."""
        if head.get("cpu_cores"):  # in a process that others share; one of its own was started on them
            os.sched_setaffinity(0, head["cpu_cores"])
        self._path = head["path"]
        self._name = head["args"]["model_instance_name"]
        self._plain = RequestHeader(frozenset(head["outputs"]))
        self._can_share = head["can_share"]
        self._session.is_decoupled = head["is_decoupled"]
        self._session.logs_verbose = head["logs_verbose"]
        self._session.calls.limit = head["calls"]
        self._session.byte_limit = head["byte_limit"]
        if self._session.owns_process and head["debugger"]:
            from .debugger import offer_breakpoints, wait_for_debugpy  # brings pdb, which others do not need

            offer_breakpoints(head["debugger"])
            wait_for_debugpy(head["debugger"])
        self._session.place(head)
        if head.get("is_in_loop") and _is_async(self._maker.load(head)):
            raise BadResult(_no_coroutine(self._name))
        self._model = self._maker.make(head)
        self._session.can_infer = True
        self._input_device = self._usable(head["input_device"])
        has_check = getattr(self._model, "is_ready", None) is not None
        if has_check:
            self._session.switchboard.want_checks()
        self._is_async = _is_async(self._model)
        if self._is_async:
            self._loop.prepare()
        return {"is_async": self._is_async, "has_is_ready": has_check}

    def finalize(self, head: Head) -> Head:
        self._session.can_infer = False
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            finalize()
        return {}

    def leave(self) -> None:
        """Let nothing of it go on in a process that does."""
        self._loop.stop()

    def compute_in_loop(self, requests: Sequence[RequestRecord]) -> Sequence[InferenceResponse | None]:
        """What the model answers, in the thread of the server's loop. Raises what the model raises, and BadResult."""
        token = enter_session(self._session)
        try:
            result = self._compute(requests)
        finally:
            leave_session(token)
        if type(result) is not list and inspect.iscoroutine(result):
            result.close()
            raise BadResult(_no_coroutine(self._name))
        return check_responses(result, requests)

    def _compute(self, requests: Sequence[RequestRecord]) -> Any:
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise BadResult(f"Python model {self._path} does not implement `execute` method.")
        if self._input_device is not None:
            for request in requests:
                request.inputs = [on_device(tensor, self._input_device) for tensor in request.inputs]
        return execute(model_requests(requests))

    def execute(self, frame: Frame) -> None:
        """Run one batch and answer it, also where the model has failed. A coroutine is only begun."""
        session = self._session
        if frame.head:
            self._segments.take(session.connection, frame.head)
            session.logs_verbose = frame.head.get("logs_verbose", session.logs_verbose)
        number, inputs, outputs = frame.column[:3]
        batch = LiveBatch(session, number, inputs, outputs)
        session.executing[number] = batch
        set_executing(batch)
        answer = self._run(frame, batch)
        set_executing(None)
        if answer is not None:
            self._answer(batch, answer)

    def _run(self, frame: Frame, batch: LiveBatch) -> bytearray | None:
        """What to answer, without a word on kept inputs: ours go with this call, or they would look kept. None where a
        coroutine will do it."""
        requests = received_requests(frame, self._segments, batch, self._plain)
        try:
            result = self._compute(requests)
            if type(result) is not list and inspect.iscoroutine(result):
                self._note_coroutine()
                self._loop.start(self._go_on(batch, self._awaited(batch, requests, result)))
                return None
            return self._outgoing(batch, requests, result)
        except BaseException as error:  # also sys.exit(): a model that wants its process to end uses os._exit
            return executed(batch, fail(batch, error))

    def _note_coroutine(self) -> None:
        """An `execute` that returns a coroutine need not look like it: it may be decorated, or call another method."""
        if not self._is_async:
            self._is_async = True
            self._session.connection.send(COROUTINE, {})

    async def _go_on(self, batch: LiveBatch, answer: Any) -> None:
        set_executing(batch)
        try:
            self._answer(batch, await answer)
        except BaseException as error:  # whatever it is, it must not end the loop alone
            self._session.break_off(error)

    async def _awaited(self, batch: LiveBatch, requests: Sequence[RequestRecord], result: Any) -> bytearray:
        try:
            return self._outgoing(batch, requests, await result)
        except BaseException as error:
            return executed(batch, fail(batch, error))

    def _outgoing(self, batch: LiveBatch, requests: Sequence[RequestRecord], result: Any) -> bytearray:
        if self._session.is_decoupled:
            if result is not None:
                raise BadResult(
                    f"Python model '{self._name}' is using the decoupled mode and the execute function must return "
                    "None."
                )
            return executed(batch, {"rescheduled": _rescheduled(requests)})
        answer = Answer(check_responses(result, requests), requests, self._session.schemas)
        if answer.packing.size > self._session.byte_limit:
            _answer_one_by_one(result, requests)
            answer = Answer([None] * len(requests), requests, self._session.schemas)
        return answer.frame(batch, self._segments, can_share=self._can_share)

    def _answer(self, batch: LiveBatch, frame: bytearray) -> None:
        del self._session.executing[batch.number]
        if batch.memory is not None:
            note_kept(frame, batch, self._segments)
        self._session.connection.send_frame(frame)

    def _usable(self, device_id: int | None) -> int | None:
        """The device, if the model's environment can use it; asked when the model has imported what it wants to."""
        if device_id is None or device.find_library() is not None:
            return device_id
        Logger.log_warn(
            f"{self._name}: inputs stay on the CPU, although FORCE_CPU_ONLY_INPUT_TENSORS is 'no': {device.NO_LIBRARY}"
        )
        return None

    def _check(self, frame: Frame) -> None:
        """In a thread of its own: a batch may be running."""
        threading.Thread(target=self._answer_check, name="is_ready", daemon=True).start()

    def _answer_check(self) -> None:
        try:
            ready = self._model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self._loop.start(ready).result()
            if not isinstance(ready, bool):
                raise BadResult("is_ready() must return a boolean value")
            head: Head = {"ready": ready}
        except BadResult as error:
            head = {"ready": False, "error": str(error)}
        except BaseException as error:
            head = {"ready": False, "error": describe(error)}
        self._session.connection.send(CHECKED, head)


def _answer_one_by_one(responses: Sequence[InferenceResponse | None], requests: Sequence[RequestRecord]) -> None:
    """As response senders do, since all of it is more than may cross at a time; what is more by itself fails."""
    for response, request in zip(responses, requests):
        reply = request.open_reply()
        if response is None or reply is None or reply.sent_count:
            continue
        try:
            reply.send(response, True)
        except TritonModelException as error:
            reply.send(failed_response(str(error)), True)


def _rescheduled(requests: Sequence[RequestRecord]) -> list[int]:
    """The places of those that are to run again; nothing more is sent for them in this round."""
    found = []
    for request in requests:
        if request.release_flags == RELEASE_RESCHEDULE and request.reply is not None:
            request.reply.close()
            found.append(request.index)
    return found


def _is_async(model: Any) -> bool:
    """Whether `execute` of a model's object, or its class, is a coroutine function."""
    return inspect.iscoroutinefunction(getattr(model, "execute", None))


def _no_coroutine(name: str) -> str:
    return (
        f"model instance '{name}' has a coroutine as execute, which ISOLATION in_loop cannot run in the server's loop; "
        "use in_process"
    )


def fail(live: LiveBatch, error: BaseException) -> Head:
    """All requests of the batch fail that were not answered before; their senders are closed. Returns what the server
    is to be told."""
    live.has_failed = True
    live.session.note_failure(error)
    for reply in list(live.replies.values()) if live.replies is not None else ():
        reply.close()
    if isinstance(error, BadResult):
        return failed_batch(str(error))
    return failed_batch(describe(error), format_traceback(error))
