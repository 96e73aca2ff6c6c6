"""Caller over HTTP/1: a connection for each request in flight, kept open between requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from trioton.perf.caller import Call, Payload, Result, Take
from trioton.perf.clock import Clock
from trioton.perf.figures import NANOSECONDS
from trioton.perf.target import Target, Wire
from trioton.perf.wires.events import Event, EventReader, error_text, generate_event, openai_event
from trioton.perf.wires.http_requests import generate_request, infer_request, openai_request
from trioton.perf.wires.response_reader import ResponseError, ResponseReader
from trioton.perf.wires.sockets import Connection, Peer, connect

_LOOK_SECONDS = 1.0
_MOST_ERROR_TEXT = 300


class HttpCaller:
    """Implements `Caller`. `run` looks for requests without an answer; its nursery holds what waits.

    Args:
        is_streaming: whether responses are events.
    """

    def __init__(
        self, target: Target, peer: Peer, nursery: trio.Nursery, clock: Clock, *, is_streaming: bool = False
    ) -> None:
        self._target, self._peer, self._nursery, self._clock = target, peer, nursery, clock
        self._is_streaming = is_streaming
        self._event = openai_event if target.wire is Wire.OPENAI else generate_event
        self._idle: list[_Exchange] = []
        self._all: set[_Exchange] = set()
        self._waiting: deque[tuple[Call, int, Take, int]] = deque()  # with the time that it was sent

    def encode(self, payload: Payload) -> Any:
        authority = self._peer.authority
        if self._target.wire is Wire.OPENAI:
            return openai_request(payload, self._target, authority)
        if self._target.wire is Wire.GENERATE:
            return generate_request(payload, self._target, authority, is_streaming=self._is_streaming)
        return infer_request(payload, self._target, authority)

    def send(self, call: Call, planned: int, take: Take) -> None:
        if self._idle:
            self._idle.pop().begin(call, planned, take)
        else:
            self._waiting.append((call, planned, take, self._clock.now()))
            self._nursery.start_soon(self._open)

    def flush(self) -> None:
        pass

    def abandon(self) -> None:
        self._waiting.clear()
        for exchange in [each for each in self._all if each.call is not None]:
            exchange.close()

    def close(self) -> None:
        """Close all connections."""
        self._waiting.clear()
        for exchange in list(self._all):
            exchange.close()

    async def run(self) -> None:
        """End requests that have no answer for too long, until it is cancelled."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            limit = self._clock.now() - round(self._target.timeout_seconds * NANOSECONDS)
            for exchange in [each for each in self._all if each.call is not None and each.sent < limit]:
                exchange.fail(f"no answer within {self._target.timeout_seconds:g} s")

    async def _open(self) -> None:
        try:
            exchange = await connect(self._peer, self._nursery, self._opened)
        except OSError as error:
            if self._waiting:
                call, planned, take, sent = self._waiting.popleft()
                now = self._clock.now()
                text = f"no connection to {self._peer.authority}: {error.strerror or error}"
                take(Result(call, planned, sent, 0, now, error=text))
        else:
            self._all.add(exchange)
            self.free(exchange)

    def _opened(self, connection: Connection) -> _Exchange:
        reader = EventReader if self._is_streaming else None
        return _Exchange(connection, self, self._clock.now, reader, self._event)

    def free(self, exchange: _Exchange) -> None:
        """It can take a request."""
        if self._waiting:
            exchange.begin(*self._waiting.popleft())
        else:
            self._idle.append(exchange)

    def forget(self, exchange: _Exchange) -> None:
        """Its connection is closed."""
        self._all.discard(exchange)
        if exchange in self._idle:
            self._idle.remove(exchange)

    def give_up_later(self, exchange: _Exchange, call: Call, seconds: float) -> None:
        """As the client who cancels."""
        self._nursery.start_soon(self._give_up, exchange, call, exchange.sent, seconds)

    async def _give_up(self, exchange: _Exchange, call: Call, sent: int, seconds: float) -> None:
        await trio.sleep(seconds)
        if exchange.call is call and exchange.sent == sent:
            exchange.give_up()


class _Exchange:
    """One connection: a request, its response, the next request."""

    def __init__(
        self,
        connection: Connection,
        caller: HttpCaller,
        now: Callable[[], int],
        events: type[EventReader] | None,
        meaning: Callable[[bytes], Event],
    ) -> None:
        self.call: Call | None = None
        self.sent = 0
        self._connection, self._caller, self._now = connection, caller, now
        self._events, self._meaning = events, meaning
        self._reader = ResponseReader()
        self._event_reader = EventReader()
        self._planned = 0
        self._take: Take | None = None
        self._times: list[int] = []
        self._responses: list[bytes] = []
        self._tokens: int | None = None
        self._error = ""

    def begin(self, call: Call, planned: int, take: Take, sent: int = 0) -> None:
        """`sent` is when it was to leave, if it has waited for the connection: that is a part of what it takes."""
        self.call, self._planned, self._take = call, planned, take
        if self._events is None:
            self._reader.begin(keeps_body=call.keeps_responses)
        else:
            self._event_reader = self._events()
            self._times, self._responses, self._tokens, self._error = [], [], None, ""
            self._reader.begin(on_body=self._take_events)
        self.sent = sent or self._now()
        if call.cancel_after is not None:
            self._caller.give_up_later(self, call, call.cancel_after)
        self._connection.write(call.data)

    def receive(self, data: bytes) -> None:
        if self.call is None:
            self.fail("there is a response to no request")
            return
        try:
            is_whole = self._reader.feed(data)
        except (ResponseError, ValueError) as error:
            self.fail(str(error))
            return
        if is_whole:
            self._end()

    def lost(self, reason: str) -> None:
        if self.call is not None and self._reader.feed_end():
            self._reader.closes = True
            self._end()
        else:
            self.fail(reason)

    def fail(self, reason: str) -> None:
        """The request has failed, and with it the connection."""
        self._finish(self._result(error=reason))

    def give_up(self) -> None:
        result = self._result()
        if result is not None:
            result.is_cancelled = True
        self._finish(result)

    def close(self) -> None:
        """Without a result."""
        self.call = None
        self._connection.close()
        self._caller.forget(self)

    def _finish(self, result: Result | None) -> None:
        """The connection is of no use any more."""
        take, self._take = self._take, None
        self.close()
        if result is not None and take is not None:
            take(result)

    def _end(self) -> None:
        result, take = self._result(), self._take
        reader = self._reader
        if result is None or take is None:
            return
        if reader.status != 200:
            result.error = _refusal(reader.status, reader.body)
        elif self._events is not None:
            self._set_responses(result)
        elif result.call.keeps_responses:
            result.responses = [reader.body]
        self.call = None
        if reader.closes:
            self._connection.close()
            self._caller.forget(self)
        else:
            self._caller.free(self)
        take(result)

    def _result(self, error: str = "") -> Result | None:
        call = self.call
        if call is None:
            return None
        now = self._now()
        return Result(call, self._planned, self.sent, 0 if error else now, now, error=error)

    def _take_events(self, data: bytes) -> None:
        for event in self._event_reader.feed(data):
            self._take_event(event)

    def _take_event(self, event: bytes) -> None:
        meaning = self._meaning(event)
        if meaning.error:
            self._error = self._error or meaning.error[:_MOST_ERROR_TEXT]
        if meaning.tokens is not None:
            self._tokens = meaning.tokens
        if meaning.has_content:
            self._times.append(self._now())
        if self.call is not None and self.call.keeps_responses:
            self._responses.append(event)

    def _set_responses(self, result: Result) -> None:
        if rest := self._event_reader.rest:  # one answer that is no event, as of a body without `stream`
            self._take_event(rest)
        result.times, result.responses, result.error = self._times, self._responses, self._error
        result.tokens = len(self._times) if self._tokens is None else self._tokens
        if self._times:
            result.first, result.last = self._times[0], self._times[-1]
        elif not result.error:
            result.error = "there was no response in the events"


def _refusal(status: int, body: bytes) -> str:
    try:
        value = msgspec.json.decode(body)
        text = error_text(value.get("error", value) if isinstance(value, dict) else value)
    except msgspec.MsgspecError:
        text = body.decode(errors="replace")
    return f"{status}: {text[:_MOST_ERROR_TEXT]}"
