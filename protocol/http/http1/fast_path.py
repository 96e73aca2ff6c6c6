"""Inline fast path: plain inference requests are served from the poller's calls while the connection's task is parked.

    poller -> [fast_path] -> direct_infer … replies -> [fast_path] -> wire

One of the two drivers of `protocol.Http1Protocol`: it takes requests that have come whole, or whose body is about to,
and leaves whatever else has come in the protocol's buffer for the other one, the task (`connection.Http1`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from protocol.access.control import NO_KEYS
from protocol.errors import ServerError
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectHead, DirectInference, DirectRequest
from protocol.http.http1.head import END_OF_HEAD, is_shared, is_worth_keeping, parse_head
from protocol.http.http1.protocol import Http1Protocol
from protocol.http.http1.response import last_lines, usual_head
from protocol.http.http1.state import HEAD, IDLE, REQUEST_BEGUN, REQUEST_READ, RESPONSE_BEGUN, RESPONSE_SENT, after
from protocol.http.reply import Reply
from protocol.http.settings import ConnectionLimits
from protocol.messages import Buffer
from protocol.reactor.transport import PlainWire, Wire, rest_of
from protocol.sync.turns import ENDS
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024
# Larger content is not copied to be joined with its head.
JOINED_SIZE = 64 * 1024

# The moves of a plain exchange, looked up once: each is assigned where the state that it leaves has been checked.
_BEGUN = after(IDLE, REQUEST_BEGUN)
_READ = after(IDLE, REQUEST_READ)
_RESPONDING = after(_READ, RESPONSE_BEGUN)
_SENT = after(_RESPONDING, RESPONSE_SENT)
assert _SENT is IDLE
assert after(_BEGUN, REQUEST_READ) is _READ


class Parking(Enum):
    """What the connection's task does."""

    AWAY = auto()  # it runs, or waits for something else
    LISTENING = auto()  # it is parked, and the poller calls when there is something to read
    DEAF = auto()  # it is parked, and nothing is read before the request under way is answered
    WOKEN = auto()  # it is about to run


# Bound once, in their order: to look one up in its enumeration takes long before Python 3.12.
_AWAY, _LISTENING, _DEAF, _WOKEN = Parking


class FastPathFailed(Exception):
    """A callback of the fast path has raised, which is a defect: the connection has to end."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The work left for a request that needed no task so far: to encode its reply, or to send the rest."""

    request: DirectRequest
    parts: Sequence[Buffer] = ()


class FastPath:
    """One per connection, whose task parks in `wait`. Without `direct`, or over TLS, every request takes that task.

    Attributes:
        unfinished: what the task has to do first when it goes on; it clears this.
    """

    __slots__ = (
        "_date",
        "_direct",
        "_error",
        "_head",
        "_is_new",
        "_keys",
        "_limits",
        "_other_head",
        "_parking",
        "_plain",
        "_protocol",
        "_request",
        "_wire",
        "_woken",
        "unfinished",
    )

    def __init__(
        self,
        protocol: Http1Protocol,
        wire: Wire,
        direct: DirectInference | None,
        limits: ConnectionLimits,
        date: DateHeader,
    ) -> None:
        self._protocol = protocol
        self._wire = wire
        self._plain = wire if isinstance(wire, PlainWire) else None
        self._direct = direct
        self._keys = NO_KEYS if direct is None else direct.keys
        self._limits = limits
        self._date = date
        self._head: DirectHead | None = None
        self._other_head = b""  # one whose requests take the task
        self._request: DirectRequest | None = None
        self._parking = _AWAY
        self._is_new = True  # nothing was read here so far
        self._woken = Wakeup()
        self._error: Exception | None = None
        self.unfinished: Unfinished | None = None

    @property
    def is_parked(self) -> bool:
        return self._parking is not _AWAY

    async def wait(self) -> None:
        """Park until there is something for the task: in the protocol's buffer, in `unfinished`, or the end of the
        client's input or of the connection. Cancelled, a request that is under way is given up.

        Raises:
            FastPathFailed: a request that was under way is given up, or its response may be sent in part.
        """
        if self._plain is None or self._direct is None:
            data = await self._wire.receive(RECEIVE_SIZE)
            if not data:
                await ENDS.wait()
            self._protocol.receive(data)
            return
        self._direct.poller.add(self._plain.socket, self._read, self._fail_read, new=self._is_new)
        self._is_new = False
        self._parking = _LISTENING
        try:
            while self._parking is not _WOKEN and self._error is None:
                await self._woken.wait()
        finally:
            self._stop_listening()
            self._parking = _AWAY
            if self._request is not None:
                request, self._request = self._request, None
                self._direct.give_up(request)
        if self._error is not None:
            raise FastPathFailed from self._error

    def has_begun(self) -> bool:
        """Whether a request has come, this moment included. If not the connection is not read any more, so that none
        can be begun that its end would lose."""
        if self._parking is _LISTENING:
            self._read()
        if self._parking is _WOKEN or (self.is_parked and self._protocol.state is not IDLE):
            return True
        self._stop_listening()
        return False

    def check_overdue(self, now: float) -> None:
        """Nothing has ended for some time. A request that is under way is given up if its client is found to have
        gone: nobody waits for the answer. One that comes in pieces is left to the task."""
        if self._parking is _WOKEN:
            return
        if self._protocol.state is HEAD:
            self._wake()
        elif self._protocol.is_half_closed and self._is_lost(now):
            self._wake(is_over=True)

    def _is_lost(self, now: float) -> bool:
        """Whether a client that sends no more has gone."""
        probe = self._protocol.probe(now)
        if probe and self._wire.send_at_once((probe,)):
            self._protocol.note_probe(now)
        return self._wire.is_lost

    @property
    def peer(self) -> str:
        """Implements `direct_infer.ReplySink`."""
        return self._wire.peer

    def answer(self, request: DirectRequest) -> None:
        """Implements `direct_infer.ReplySink`."""
        if request is not self._request or self._direct is None:
            if request.submitted is not None and self._direct is not None:  # its begin has failed behind its submission
                self._direct.close(request)
            return  # else it was given up
        self._request = None
        protocol = self._protocol
        reply = self._direct.reply(request)
        left = () if reply is None else self._send(reply)
        self._direct.close(request)  # while the answer is on its way
        if reply is None or left:
            self.unfinished = Unfinished(request, left)
            self._wake()
        elif protocol.state is _RESPONDING and self._parking is _LISTENING:
            protocol.state = _SENT
        else:
            protocol.end_response()
            self._wake()

    def fail_answer(self, request: DirectRequest, error: Exception) -> None:
        """Implements `direct_infer.ReplySink`."""
        self._fail(error)
        if request.submitted is not None and self._direct is not None:
            self._direct.close(request)

    def _fail_read(self, error: Exception) -> None:
        """The poller's callback has raised this."""
        assert self._direct is not None
        self._direct.failures.note("poller", error, "an HTTP connection failed, and ends")
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Have the task end the connection; a request in flight is cancelled."""
        self._error = error
        self._wake()

    def _send(self, reply: Reply) -> Sequence[Buffer]:
        """Send; returns what the kernel does not accept at once."""
        protocol, body, tail, request_id = self._protocol, reply.body, reply.tail, reply.request_id
        length = len(body)
        for part in tail:  # as `reply.length`, for less
            length += len(part)
        date = self._date.line()
        if protocol.closes:
            last = last_lines(request_id, date)
            head = protocol.begin_response(reply.status, reply.headers, last, length)
        else:
            usual = usual_head(reply.status, reply.headers, length)
            protocol.state = _RESPONDING
            if length <= JOINED_SIZE:
                data = b"".join([usual, request_id, b"\r\n", date, body, *tail])
                sent = self._wire.send_at_once((data,))
                return () if sent == len(data) else rest_of((data,), sent)
            head = b"".join((usual, request_id, b"\r\n", date))
        parts = (head, body, *tail)
        sent = self._wire.send_at_once(parts)
        return () if sent == len(head) + length else rest_of(parts, sent)

    def _read(self) -> None:
        """The readiness callback of the poller."""
        assert self._plain is not None
        data = self._plain.receive_at_once(RECEIVE_SIZE)
        if data is None:
            return
        protocol = self._protocol
        is_busy = protocol.state is _READ
        if data and not is_busy and self._begin(protocol.buffer + data):
            return
        protocol.receive(data)
        if is_busy:  # a further request, or none: until this one is answered
            self._stop_listening()
            if not data:
                protocol.closes = True
        else:
            self._wake(is_over=not data)

    def _begin(self, data: bytes) -> bool:
        """Whether the request could be taken here, or its rest is to come."""
        assert self._direct is not None
        protocol, head = self._protocol, self._head
        # What it says of access holds for the keys by which it was allowed.
        if head is None or head.keys is not self._keys.current or not data.startswith(head.data):
            head = self._head = self._find_head(data)
        if head is None or protocol.served + 1 >= protocol.max_requests:
            return False
        if len(data) != head.size:
            return self._awaits_rest(head, data)
        self._request = self._direct.begin(head, data, self, len(head.data))
        if self._request is None:
            return False
        protocol.buffer = b""
        protocol.state = _READ
        protocol.served += 1
        return True

    def _awaits_rest(self, head: DirectHead, data: bytes) -> bool:
        """Whether the rest of a request is to come here: many clients send head and body one after the other."""
        if not len(data) < head.size <= RECEIVE_SIZE:
            return False
        if head.account is not None and head.is_refused:  # before the body is waited for
            return False
        self._protocol.buffer = data
        self._protocol.state = _BEGUN
        return True

    def _find_head(self, data: bytes) -> DirectHead | None:
        assert self._direct is not None
        found = END_OF_HEAD.search(data)
        if found is None or found.end() > self._limits.max_header_size:
            return None
        text = data[: found.end()]
        known = self._direct.known_head(text)
        if known is not None:
            return known
        if text == self._other_head or not is_worth_keeping(text):
            return None
        try:
            head = self._direct.head(parse_head(text), text)
        except ServerError:
            return None
        if head is None:
            self._other_head = text
        elif is_shared(text):
            self._direct.keep_head(head)
        return head

    def _stop_listening(self) -> None:
        if self._parking is _LISTENING:
            assert self._plain is not None
            assert self._direct is not None
            self._parking = _DEAF
            self._direct.poller.remove(self._plain.socket)

    def _wake(self, *, is_over: bool = False) -> None:
        """Where the client has gone, `is_over`, in its turn: as many may in one moment."""
        self._stop_listening()
        if self._parking is _DEAF:
            self._parking = _WOKEN
            if is_over:
                ENDS.wake(self._woken)
            else:
                self._woken.wake()
