"""Callers over gRPC: a call for each request, or one stream for all requests of a connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import trio

from protocol.messages import Buffer
from protocol.proto import message_class
from trioton.perf.caller import Call, Payload, Result, Take
from trioton.perf.clock import Clock
from trioton.perf.figures import NANOSECONDS
from trioton.perf.target import Target
from trioton.perf.wires.grpc_requests import FINAL, call_headers, infer_message, with_id
from trioton.perf.wires.h2 import H2Client, H2Error, prefixed
from trioton.perf.wires.sockets import Connection, Peer, connect

_LOOK_SECONDS = 1.0
_JOINED_SIZE = 65536


class _Pending(msgspec.Struct, eq=False):
    """A request in flight; its call is a stream's number, or its id on the one stream."""

    call: Call
    planned: int
    sent: int
    take: Take
    has_message: bool = False
    times: list[int] = []
    responses: list[bytes] = []


class _Link:
    """One connection, and the requests in flight on it. A base: how requests and responses look is its subclasses'."""

    method = ""

    def __init__(self, connection: Connection, caller: GrpcCaller, headers: list[tuple[str, str]]) -> None:
        self.pending: dict[Any, _Pending] = {}
        self.h2 = H2Client(headers, self)
        self.is_lost = False
        self.is_dirty = False  # whether it is to be written at the end of the burst
        self._connection, self._caller, self._now = connection, caller, caller.now
        self.h2.start()

    @property
    def has_room(self) -> bool:
        h2 = self.h2
        return not self.is_lost and not h2.is_closing and len(h2.streams) < h2.max_streams

    def send(self, call: Call, planned: int, take: Take) -> None:
        raise NotImplementedError

    def give_up(self, key: Any) -> None:
        """The client cancels a request."""
        pending = self.pending.pop(key, None)
        if pending is not None:
            self.reset(key)
            now = self._now()
            pending.take(Result(pending.call, pending.planned, pending.sent, 0, now, is_cancelled=True))
            self._caller.flush()

    def reset(self, key: Any) -> None:
        """Tell the server that a request is given up."""

    def fail(self, key: Any, error: str) -> None:
        pending = self.pending.pop(key, None)
        if pending is not None:
            pending.take(Result(pending.call, pending.planned, pending.sent, 0, self._now(), error=error))

    def receive(self, data: bytes) -> None:
        try:
            self.h2.receive(data)
        except H2Error as error:
            self._connection.close()
            self.lost(str(error))
            return
        if not self.is_dirty:
            self._caller.note_output(self)
        self._caller.flush()

    def lost(self, reason: str) -> None:
        self.is_lost = True
        self._caller.forget(self)
        self.h2.fail_all(f"UNAVAILABLE: {reason}")
        for key in list(self.pending):
            self.fail(key, f"UNAVAILABLE: {reason}")
        self._caller.flush()

    def write(self) -> None:
        """All output that there is, small parts joined."""
        output = self.h2.take_output()
        if not output or self.is_lost:
            return
        if len(output) == 1:
            self._connection.write(output[0])
        elif sum(map(len, output)) <= _JOINED_SIZE:
            self._connection.write(b"".join(output))
        else:
            for part in output:
                self._connection.write(part)

    def close(self) -> None:
        """Without results."""
        self.is_lost = True
        self.pending.clear()
        self._connection.close()
        self._caller.forget(self)

    def message(self, stream_id: int, data: Buffer) -> None:
        raise NotImplementedError

    def end(self, stream_id: int, error: str) -> None:
        raise NotImplementedError


class UnaryLink(_Link):
    """A call for each request."""

    method = "ModelInfer"

    def send(self, call: Call, planned: int, take: Take) -> None:
        sent = self._now()
        stream_id = self.h2.open(call.data)
        self.pending[stream_id] = _Pending(call, planned, sent, take)
        if call.cancel_after is not None:
            self._caller.give_up_later(self, stream_id, call.cancel_after)

    def reset(self, key: Any) -> None:
        self.h2.cancel(key)
        self._caller.note_output(self)

    def message(self, stream_id: int, data: Buffer) -> None:
        pending = self.pending.get(stream_id)
        if pending is not None:
            pending.has_message = True
            if pending.call.keeps_responses:
                pending.responses = [bytes(data)]

    def end(self, stream_id: int, error: str) -> None:
        pending = self.pending.pop(stream_id, None)
        if pending is None:
            return
        if not error and not pending.has_message:
            error = "INTERNAL: the call has ended without a message"
        now = self._now()
        result = Result(pending.call, pending.planned, pending.sent, 0 if error else now, now, error=error)
        if pending.responses:
            result.responses = pending.responses
        pending.take(result)


class StreamLink(_Link):
    """One stream for all requests, told apart by ids. What ends a request is its final response; of a model with one
    response to each request, that."""

    method = "ModelStreamInfer"

    def __init__(self, connection: Connection, caller: GrpcCaller, headers: list[tuple[str, str]]) -> None:
        super().__init__(connection, caller, headers)
        self._stream = self.h2.open(ends=False)
        self._next = 0
        self._is_decoupled = caller.is_decoupled
        self._read: Callable[[Buffer], Any] = message_class("inference.ModelStreamInferResponse").FromString  # type: ignore[assignment]  # it takes any buffer

    @property
    def has_room(self) -> bool:
        return not self.is_lost and bool(self.h2.streams)

    def send(self, call: Call, planned: int, take: Take) -> None:
        self._next += 1
        key = str(self._next)
        sent = self._now()
        self.h2.send(self._stream, with_id(call.data, key.encode()))
        self.pending[key] = _Pending(call, planned, sent, take)
        if call.cancel_after is not None:
            self._caller.give_up_later(self, key, call.cancel_after)

    def message(self, stream_id: int, data: Buffer) -> None:
        message = self._read(data)
        response = message.infer_response
        key = response.id
        pending = self.pending.get(key)
        if message.error_message:
            self._fail_of(key, message.error_message)
            return
        if pending is None:  # given up
            return
        is_final = not self._is_decoupled
        if self._is_decoupled and FINAL in response.parameters:
            is_final = response.parameters[FINAL].bool_param
        if not self._is_decoupled or response.outputs:
            pending.times.append(self._now())
            if pending.call.keeps_responses:
                pending.responses.append(bytes(data))
        if is_final:
            self._end(key, pending)

    def end(self, stream_id: int, error: str) -> None:
        """Of the stream, and so of all requests; the connection is of no use without it."""
        self._connection.close()
        self.is_lost = True
        self._caller.forget(self)
        for key in list(self.pending):
            self.fail(key, error or "UNAVAILABLE: the server has ended the stream")

    def _fail_of(self, key: str, error: str) -> None:
        """Of an old server that does not say whose error it is, the oldest request has failed."""
        if not key and self.pending:
            key = next(iter(self.pending))
        self.fail(key, error)

    def _end(self, key: str, pending: _Pending) -> None:
        del self.pending[key]
        times, now = pending.times, self._now()
        result = Result(pending.call, pending.planned, pending.sent, now, now)
        if times:
            result.first, result.last = times[0], times[-1]
        if self._is_decoupled:
            result.times = times
        result.responses = pending.responses
        pending.take(result)


LinkType: TypeAlias = type[UnaryLink] | type[StreamLink]


class GrpcCaller:
    """Implements `Caller`. `run` looks for requests without an answer; its nursery holds what waits.

    Requests go to the connections in turn; where the server takes no more at a time on any of them, to a new one.
    """

    def __init__(
        self,
        target: Target,
        peer: Peer,
        nursery: trio.Nursery,
        clock: Clock,
        link: LinkType = UnaryLink,
        *,
        is_decoupled: bool = False,
    ) -> None:
        self.now = clock.now
        self.is_decoupled = is_decoupled
        self._target, self._peer, self._nursery, self._link = target, peer, nursery, link
        self._links: list[_Link] = []
        self._turn = 0
        self._opening = 0
        self._waiting: deque[tuple[Call, int, Take]] = deque()
        self._dirty: list[_Link] = []
        self._headers = call_headers(link.method, peer.authority, target)

    def encode(self, payload: Payload) -> Any:
        message = infer_message(payload, self._target, wants_final=self._link is StreamLink and self.is_decoupled)
        return message if self._link is StreamLink else prefixed(message)

    def send(self, call: Call, planned: int, take: Take) -> None:
        links = self._links
        wanted = self._target.connections
        if len(links) + self._opening < wanted:
            self._open_another()
        # A stream answers in order, so on one that is idle a request waits for no other.
        for has_to_be_idle in (True, False) if self._link is StreamLink else (False,):
            for _ in range(len(links)):
                self._turn = (self._turn + 1) % len(links)
                link = links[self._turn]
                if link.has_room and not (has_to_be_idle and link.pending):
                    link.send(call, planned, take)
                    if not link.is_dirty:  # as `note_output`
                        link.is_dirty = True
                        self._dirty.append(link)
                    return
        self._waiting.append((call, planned, take))
        if not self._opening:
            self._open_another()

    def flush(self) -> None:
        while self._dirty:
            link = self._dirty.pop()
            link.is_dirty = False
            link.write()

    def abandon(self) -> None:
        self._waiting.clear()
        for link in [each for each in self._links if each.pending]:
            link.close()

    def close(self) -> None:
        """Close all connections."""
        self._waiting.clear()
        for link in list(self._links):
            link.close()

    async def run(self) -> None:
        """End requests that have no answer for too long, until it is cancelled."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            limit = self.now() - round(self._target.timeout_seconds * NANOSECONDS)
            for link in list(self._links):
                for key in [key for key, pending in link.pending.items() if pending.sent < limit]:
                    link.reset(key)
                    link.fail(key, f"no answer within {self._target.timeout_seconds:g} s")
            self.flush()

    def note_output(self, link: _Link) -> None:
        """There may be something to write."""
        if not link.is_dirty:
            link.is_dirty = True
            self._dirty.append(link)

    def forget(self, link: _Link) -> None:
        """Its connection is closed."""
        if link in self._links:
            self._links.remove(link)

    def give_up_later(self, link: _Link, key: Any, seconds: float) -> None:
        """As the client who cancels."""
        self._nursery.start_soon(self._give_up, link, key, seconds)

    async def _give_up(self, link: _Link, key: Any, seconds: float) -> None:
        await trio.sleep(seconds)
        link.give_up(key)

    def _open_another(self) -> None:
        self._opening += 1
        self._nursery.start_soon(self._open)

    async def _open(self) -> None:
        error = ""
        try:
            await connect(self._peer, self._nursery, self._opened)
        except OSError as failure:
            error = f"UNAVAILABLE: no connection to {self._peer.authority}: {failure.strerror or failure}"
        finally:
            self._opening -= 1
        waiting, self._waiting = self._waiting, deque()
        for call, planned, take in waiting:
            if error:
                now = self.now()
                take(Result(call, planned, now, 0, now, error=error))
            else:
                self.send(call, planned, take)
        self.flush()

    def _opened(self, connection: Connection) -> _Link:
        link = self._link(connection, self, self._headers)
        self._links.append(link)
        self.note_output(link)
        return link
