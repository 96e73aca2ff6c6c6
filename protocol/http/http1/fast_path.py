"""The time that an HTTP/1 connection's task sleeps: until a request comes that takes a task. Those that take none are
answered meanwhile, by calls.

    poller -> [rest] -> direct_infer … answers -> [rest] -> wire
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.access.control import NO_KEYS
from protocol.errors import ServerError
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectHead, DirectInference, DirectRequest
from protocol.http.http1.exchange import JOINED_SIZE, response_head, usual_head
from protocol.http.http1.half_close import HalfClose
from protocol.http.http1.head import END_OF_HEAD, is_worth_keeping, parse_head
from protocol.http.reply import Reply
from protocol.http.settings import ConnectionLimits
from protocol.messages import Buffer
from protocol.reactor.transport import PlainWire, Wire, split
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is left to do for a request that needed no task up to here: to encode its answer, or to send the rest."""

    request: DirectRequest
    parts: Sequence[Buffer] = ()


class FastPath:
    """Of one connection. Without `direct` every request takes the task."""

    def __init__(self, wire: Wire, direct: DirectInference | None, limits: ConnectionLimits, date: DateHeader) -> None:
        self._wire = wire
        self._plain = wire if isinstance(wire, PlainWire) else None
        self._direct = direct
        self._keys = NO_KEYS if direct is None else direct.keys
        self._limits = limits
        self._date = date
        self._head: DirectHead | None = None
        self._usual = b""  # a head whose requests take the task
        self._request: DirectRequest | None = None
        self._is_in_sight = False
        self._begun = b""  # of a request that needs no task; the rest of it is to come
        self._data = b""  # what has come for the task
        self._has_come = False  # the task is to go on
        self._woken = Wakeup()
        # How many requests have been served here; no more than `most` are to be.
        self.served = 0
        self.most: float = 0
        self.half_close = HalfClose()
        self.closes = False  # the connection is to end with the next answer
        self.has_said_close = False  # in an answer, the last one
        self.unfinished: Unfinished | None = None
        self.has_failed = False  # by a defect: no request follows
        self.has_begun_answer = False  # some of an answer may have left, and so no other can be given
        self.is_cut = False  # what the task gets is the beginning of a request, whose rest has not come in time

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way, or comes."""
        return self._request is not None or self.unfinished is not None or bool(self._begun)

    async def wait(self) -> bytes:
        """The first bytes of what takes the task; none where the client has closed its end, a request is `unfinished`,
        or the connection is to end. Cancelled, a request that is under way is given up."""
        if self._plain is None or self._direct is None:
            data = await self._wire.receive(RECEIVE_SIZE)
            self.half_close.has_begun = not data
            return data
        self._direct.poller.add(self._plain.socket, self._read, self._fail_read)
        self._is_in_sight = True
        self.is_cut = False
        try:
            while not self._has_come:
                await self._woken.wait()
        finally:
            self._look_away()
            if self._request is not None:
                request, self._request = self._request, None
                self._direct.give_up(request)
        data, self._data, self._has_come = self._data, b"", False
        return data

    def has_begun(self) -> bool:
        """Whether a request has come, this moment included. If not the connection is not looked at any more, so that
        none can be begun that its end would lose."""
        if self._is_in_sight:
            self._read()
        if self.is_busy or self._has_come:
            return True
        self._look_away()
        return False

    def take_long(self, now: float) -> None:
        """Nothing has ended for some time. A request that is under way is given up if its client is found to have
        gone: nobody waits for the answer. One that comes in pieces is left to the task."""
        if self._request is not None:
            if self.half_close.has_begun and self._is_lost(now):
                self._wake()
        elif self._begun:
            self._hand_over(self._begun)

    def _is_lost(self, now: float) -> bool:
        """Whether a client that sends no more has gone."""
        probe = self.half_close.probe(now)
        if probe and self._wire.send_at_once((probe,)):
            self.half_close.note_sent(now)
        return self._wire.is_lost

    def answer(self, request: DirectRequest) -> None:
        """Implements `direct_infer.ReplySink`."""
        if request is not self._request or self._direct is None:
            if request.submitted is not None and self._direct is not None:  # its begin has failed behind its submission
                self._direct.close(request)
            return  # else it was given up
        self._request = None
        reply = self._direct.reply(request)
        left = () if reply is None else self._send(reply)
        self._direct.close(request)  # while the answer is on its way
        self.has_begun_answer = False
        if reply is None or left:
            self.unfinished = Unfinished(request, left)
            self._wake()
        elif self.closes or not self._is_in_sight:
            self._wake()

    def fail_answer(self, request: DirectRequest, error: Exception) -> None:
        """Implements `direct_infer.ReplySink`."""
        self._fail()
        if request.submitted is not None and self._direct is not None:
            self._direct.close(request)

    def _fail_read(self, error: Exception) -> None:
        """The poller's call has raised this."""
        assert self._direct is not None
        self._direct.failures.note("poller", error, "an HTTP connection failed, and ends")
        self._fail()

    def _fail(self) -> None:
        """The task is to end the connection; a request that is under way is given up."""
        self.has_failed = True
        self._begun = self._data = b""
        self._wake()

    def _send(self, reply: Reply) -> Sequence[Buffer]:
        """Returns what the kernel does not take at once."""
        length = reply.length
        if self.closes:
            self.has_said_close = True
            head = response_head(reply.status, reply.headers, self._date, length=length, closes=True)
            head = self.half_close.rest_of(head)
        else:
            head = usual_head(reply.status, reply.headers, length) + self._date.line()
        parts: Sequence[Buffer] = (head, reply.body, *reply.tail)
        if length <= JOINED_SIZE:
            parts = (b"".join(parts),)
        self.has_begun_answer = True
        sent = self._wire.send_at_once(parts)
        return () if sent == len(head) + length else split(parts, sent)[1]

    def _read(self) -> None:
        """Called by the poller."""
        assert self._plain is not None
        data = self._plain.receive_at_once(RECEIVE_SIZE)
        if data is None:
            return
        if self._begun:
            whole = self._begun + data
            if not data or not self._begin(whole):
                self._hand_over(whole)
            return
        if not data:
            self.half_close.has_begun = self.closes = True
        if self._request is not None:  # a further request, or none: until this one is answered
            self._look_away()
            self._data = data
        elif not (data and self._begin(data)):
            self._data = data
            self._wake()

    def _hand_over(self, data: bytes) -> None:
        self._begun = b""
        self._data = data
        self.is_cut = True
        self._wake()

    def _begin(self, data: bytes) -> bool:
        """Whether the request could be taken here, or its rest is to come."""
        assert self._direct is not None
        head = self._head
        # What it says of access holds for the keys by which it was allowed.
        if head is None or head.keys is not self._keys.current or not data.startswith(head.data):
            head = self._head = self._find_head(data)
        if head is None or self.served + 1 >= self.most:
            return False
        if len(data) < head.size <= RECEIVE_SIZE:  # many clients send head and body one after the other
            self._begun = data
            return True
        if len(data) != head.size:
            return False
        self._begun = b""
        self._request = self._direct.begin(head, memoryview(data)[len(head.data) :], self)
        if self._request is None:
            return False
        self.served += 1
        return True

    def _find_head(self, data: bytes) -> DirectHead | None:
        assert self._direct is not None
        found = END_OF_HEAD.search(data)
        if found is None or found.end() > self._limits.max_header_size:
            return None
        text = data[: found.end()]
        if text == self._usual or not is_worth_keeping(text):
            return None
        try:
            head = self._direct.head(parse_head(text), text)
        except ServerError:
            return None
        if head is None:
            self._usual = text
        return head

    def _look_away(self) -> None:
        if self._is_in_sight:
            assert self._plain is not None
            assert self._direct is not None
            self._is_in_sight = False
            self._direct.poller.remove(self._plain.socket)

    def _wake(self) -> None:
        self._look_away()
        self._has_come = True
        self._woken.wake()
