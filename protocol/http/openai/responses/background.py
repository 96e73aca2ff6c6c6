"""Responses in the background: their runs, and the events that clients read meanwhile."""

from __future__ import annotations

from protocol.errors import Internal, ServerError, text_of
from protocol.failures import CallbackFailures
from protocol.http.openai.responses.run import ResponseRun
from protocol.http.openai.streams.event_stream import EventStream
from protocol.quotas.accounts import Charge
from protocol.responses.background import Responses
from protocol.responses.event_log import EventLog
from protocol.responses.store import KeptResponse


class QueuedRun:
    """The run of one response. Implements `protocol.responses.background.BackgroundRun`."""

    def __init__(
        self, run: ResponseRun, responses: Responses, failures: CallbackFailures, charge: Charge | None, request_id: str
    ) -> None:
        self._run = run
        self._request_id = request_id
        self._charge = charge
        if charge is not None:
            charge.goes_on = True
        self._responses = responses
        self._failures = failures

    def queue(self, kept: KeptResponse) -> None:
        """Before it begins."""
        self._tell(kept, self._run.queue())

    async def run(self, kept: KeptResponse) -> None:
        charge = self._charge
        if charge is None:
            await self._run_charged(kept)
            return
        charge.resume()
        try:
            await self._run_charged(kept)
        finally:
            charge.end()

    async def _run_charged(self, kept: KeptResponse) -> None:
        is_queued = True

        async def send(data: bytes) -> None:
            nonlocal is_queued
            self._tell(kept, data, is_answer_new=is_queued)
            is_queued = False

        try:
            last = await self._run.run(send)
        except ServerError as error:
            last = self._run.failed(error, self._request_id)
        except Exception as error:
            self._failures.note("background", error, f"response {kept.id} failed")
            last = self._run.failed(Internal(f"internal error: {text_of(error)}"), self._request_id)
        self._tell(kept, last)

    def cancelled(self, kept: KeptResponse) -> None:
        self._run.cancelled()
        self._tell(kept, b"")

    def _tell(self, kept: KeptResponse, data: bytes, *, is_answer_new: bool = True) -> None:
        if is_answer_new:
            kept.answer = self._run.answer.encode()
        if kept.log is not None:
            kept.log.append(data)
        self._responses.changed(kept)


async def follow(log: EventLog, after: int, events: EventStream) -> bytes:
    """Send the events after the one of that number, and those that come. Returns none, at their end.

    Raises:
        InvalidArgument: they are not kept any more.
    """
    place = after + 1
    while True:
        data, place = log.read(place)
        if data:
            await events.send(data)
        elif log.is_over:
            return b""
        else:
            await log.wait()
