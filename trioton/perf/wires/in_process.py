"""Caller without a wire: calls the models of this process, on the Trio loop that they run in.

Results are handed on by a task, and not within the model's reply: a model that answers within the call of the next
request would never let go of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import trio

from protocol.core import Submitted
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse
from protocol.sync.wakeup import Wakeup
from trioton.in_process import Models
from trioton.perf.caller import Call, Payload, Result, Take
from trioton.perf.clock import Clock
from trioton.perf.figures import NANOSECONDS
from trioton.perf.target import Target


class InProcessCaller:
    """Implements `Caller`. `run` hands results on, and ends requests without an answer; its nursery holds the
    requests that take a task: those of decoupled models."""

    def __init__(
        self, target: Target, models: Models, nursery: trio.Nursery, clock: Clock, *, is_decoupled: bool = False
    ) -> None:
        self._target, self._models, self._nursery, self.now = target, models, nursery, clock.now
        self._is_decoupled = is_decoupled
        self._version = int(target.version) if target.version else LATEST_VERSION
        # The server's own models take requests without a task for each.
        self._submit: Callable[..., Submitted] | None = getattr(models, "submit", None)
        self._pending: set[_Slot] = set()
        self._scopes: set[trio.CancelScope] = set()
        self._results: list[tuple[Take, Result]] = []
        self._has_results = Wakeup()

    def encode(self, payload: Payload) -> Any:
        """A request to be copied for each call, since the server writes into it."""
        if payload.body is not None or payload.input_regions or payload.output_regions:
            raise InvalidArgument("in process there are tensors only, no JSON bodies and no shared memory")
        return InferenceRequest(
            self._target.model,
            list(payload.inputs),
            self._version,
            id=payload.id,
            requested_outputs=tuple(payload.outputs),
            parameters=dict(payload.parameters),
            sequence_id=payload.sequence_id,
            sequence_start=payload.sequence_start,
            sequence_end=payload.sequence_end,
            priority=payload.priority,
            timeout_microseconds=payload.timeout_microseconds,
        )

    def send(self, call: Call, planned: int, take: Take) -> None:
        request = _copied(call.data)
        if self._submit is None or self._is_decoupled:
            self._nursery.start_soon(self._run, call, request, planned, take)
            return
        slot = _Slot(call, planned, self.now(), take, self)
        self._pending.add(slot)
        slot.submitted = self._submit(request, slot)
        if slot.is_answered:
            slot.submitted.end()
        elif call.cancel_after is not None:
            self._nursery.start_soon(self._give_up, slot, call.cancel_after)

    def flush(self) -> None:
        pass

    def abandon(self) -> None:
        for slot in list(self._pending):
            slot.abandon()
        for scope in list(self._scopes):
            scope.cancel()

    close = abandon

    async def run(self) -> None:
        """Until it is cancelled."""
        self._nursery.start_soon(self._look)
        while True:
            if not self._results:
                await self._has_results.wait()
            results, self._results = self._results, []
            for take, result in results:
                take(result)
            await trio.lowlevel.checkpoint()

    def hand_on(self, slot: _Slot, take: Take, result: Result) -> None:
        """The result of a request that is no longer in flight."""
        self._pending.discard(slot)
        self._results.append((take, result))
        self._has_results.wake()

    def forget(self, slot: _Slot) -> None:
        """A request that is given up."""
        self._pending.discard(slot)

    async def _look(self) -> None:
        while True:
            await trio.sleep(1)
            limit = self.now() - round(self._target.timeout_seconds * NANOSECONDS)
            for slot in [each for each in self._pending if each.sent < limit]:
                slot.give_up(error=f"no answer within {self._target.timeout_seconds:g} s")

    async def _give_up(self, slot: _Slot, seconds: float) -> None:
        await trio.sleep(seconds)
        slot.give_up()

    async def _run(self, call: Call, request: InferenceRequest, planned: int, take: Take) -> None:
        sent, error = self.now(), ""
        times: list[int] = []

        async def respond(response: InferenceResponse) -> None:
            if response.outputs:
                times.append(self.now())

        limit = self._target.timeout_seconds if call.cancel_after is None else call.cancel_after
        with trio.move_on_after(limit) as scope:
            self._scopes.add(scope)
            try:
                if self._is_decoupled:
                    await self._models.infer_stream(request, respond)
                else:
                    await self._models.infer(request)
            except ServerError as failure:
                error = str(failure)
        self._scopes.discard(scope)
        now = self.now()
        result = Result(call, planned, sent, 0 if error else now, now, error=error)
        if scope.cancelled_caught:
            if scope.deadline > trio.current_time():  # abandoned
                return
            result.is_cancelled = call.cancel_after is not None
            result.error = "" if result.is_cancelled else f"no answer within {limit:g} s"
        if times and not error:
            result.first, result.last, result.times = times[0], times[-1], times
        take(result)


class _Slot:
    """A request in flight, and where its reply is sent to (`protocol.core.ReplyChannel`)."""

    def __init__(self, call: Call, planned: int, sent: int, take: Take, caller: InProcessCaller) -> None:
        self.submitted: Submitted | None = None
        self.is_answered = False
        self.sent = sent
        self._call, self._planned, self._take, self._caller = call, planned, take, caller

    def send_nowait(self, value: InferenceResponse | ServerError, /) -> None:
        if self.is_answered:
            return
        self.is_answered = True
        if self.submitted is not None:
            self.submitted.end()
        self._hand_on(str(value) if isinstance(value, ServerError) else "")

    def give_up(self, *, error: str = "") -> None:
        """Cancel it; with an error it has failed by that."""
        if not self.is_answered:
            self.abandon()
            self._hand_on(error, is_cancelled=not error)

    def abandon(self) -> None:
        """Without a result."""
        self.is_answered = True
        self._caller.forget(self)
        if self.submitted is not None:
            self.submitted.give_up()

    def _hand_on(self, error: str, *, is_cancelled: bool = False) -> None:
        now = self._caller.now()
        first = 0 if error or is_cancelled else now
        result = Result(self._call, self._planned, self.sent, first, now, error=error, is_cancelled=is_cancelled)
        self._caller.hand_on(self, self._take, result)


def _copied(request: InferenceRequest) -> InferenceRequest:
    made = msgspec.structs.replace(request)
    made.inputs, made.parameters = list(request.inputs), dict(request.parameters)
    return made
