"""HTTP/1 on one connection: a task that reads a request, runs the application and answers, one exchange at a time.

    wire -> protocol -> [connection] -> application -> exchange -> protocol -> wire

One of the two drivers of `protocol.Http1Protocol`; between two requests the task parks in the other one, the inline
fast path. A second task reads ahead while a request runs for long, so that a client that leaves cancels it. Nothing is
paid for that by requests that are answered soon.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import trio

from protocol.errors import Internal, ServerError
from protocol.http.body import BodyLimit
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectInference
from protocol.http.errors import HeaderTimeout, LimitError, error_reply
from protocol.http.exchange import App, BodyStream, ClientGone
from protocol.http.head import Head
from protocol.http.http1.body import IncomingBody, StreamedBody, read_at_once
from protocol.http.http1.deadlines import Deadlines, Look
from protocol.http.http1.events import ChangeToHttp2, Refusal, Signal
from protocol.http.http1.exchange import Http1Exchange
from protocol.http.http1.fast_path import RECEIVE_SIZE, FastPath, FastPathFailed, Unfinished
from protocol.http.http1.protocol import CONTINUE, SWITCHING_PROTOCOLS, Http1Protocol
from protocol.http.http1.response import last_lines
from protocol.http.http1.state import AWAITING, CLOSED, CLOSING, HEAD, IDLE, LINGERING, RESPONDING
from protocol.http.settings import GOODBYE_SECONDS, ConnectionLimits, OnLimit
from protocol.limits.request_memory import RequestShare
from protocol.messages import Buffer
from protocol.reactor.transport import Wire
from protocol.sync.turns import ENDS
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)


class Http1:
    """Run, and its wire closed, by the connection that has accepted the client. `on_limit` is told the name of each
    limit that bites; without `direct` every request takes the task."""

    __slots__ = (
        "_app",
        "_deadlines",
        "_direct",
        "_fast_path",
        "_has_read_ahead",
        "_is_reading_ahead",
        "_is_sending",
        "_linger",
        "_probing",
        "_reading",
        "_running",
        "_unsent",
        "_watching",
        "date",
        "limits",
        "on_limit",
        "protocol",
        "wire",
    )

    def __init__(
        self,
        app: App,
        wire: Wire,
        limits: ConnectionLimits,
        on_limit: OnLimit,
        date: DateHeader,
        *,
        direct: DirectInference | None = None,
        may_upgrade: bool = True,
    ) -> None:
        self._app = app
        self._direct = direct
        self.wire = wire
        self.limits = limits
        self.on_limit = on_limit
        self.date = date
        self.protocol = Http1Protocol(
            limits.max_header_size, limits.max_requests_per_connection, may_upgrade=may_upgrade
        )
        self._fast_path = FastPath(self.protocol, wire, direct, limits, date)
        self._deadlines = Deadlines(limits)
        self._reading = trio.CancelScope()  # around all exchanges, cancelled between two of them
        self._running: trio.CancelScope | None = None  # all
        self._linger = GOODBYE_SECONDS
        # Of the watcher, which reads or probes while a request runs, and of who has to wait for it.
        self._watching = Wakeup()
        self._is_reading_ahead = False
        self._has_read_ahead = Wakeup()
        self._is_sending = False  # a part of a response
        self._unsent = b""  # of a piece that was sent at once
        self._probing: trio.Event | None = None  # set when a probe of a half-closed client is out

    async def run(self) -> ChangeToHttp2 | None:
        """Serve until either side ends the connection, or HTTP/2 begins. Cancelling ends it at once, with what runs."""
        change: ChangeToHttp2 | None = None
        async with trio.open_nursery() as nursery:
            self._running = nursery.cancel_scope
            nursery.start_soon(self._watch)
            last: Head | ChangeToHttp2 | None = None
            with self._reading:
                last = await self._serve()
            if isinstance(last, ChangeToHttp2):
                change = last
            elif last is not None:
                await self._run(last)
            elif self._reading.cancelled_caught:
                await self._time_out()
            nursery.cancel_scope.cancel()
        if self.protocol.state is LINGERING:
            with trio.move_on_after(self._linger):
                await self._say_goodbye()
        return change

    def check_time(self, now: float) -> None:
        """Called every now and then by the listener's one timer."""
        protocol, fast_path = self.protocol, self._fast_path
        is_waiting = protocol.state is IDLE or (protocol.state is HEAD and not fast_path.is_parked)
        look = self._deadlines.look(now, protocol.served, is_waiting=is_waiting)
        if look is Look.TIMED_OUT:
            if not fast_path.has_begun():
                self._reading.cancel()
        elif look is Look.OVERDUE:
            if fast_path.is_parked:
                fast_path.check_overdue(now)
            elif protocol.is_half_closed:  # its client may have gone, and with it many others
                ENDS.wake(self._watching)
            else:
                self._watching.wake()

    def retire(self) -> None:
        """Say in the next answer that it is the last one, and wait for its request as ever."""
        self.protocol.closes = True

    def leave(self) -> None:
        """The server stops: say in the next answer that it is the last one, and let `run` return behind it, or when no
        request has come for `LEAVE_SECONDS`."""
        if not self._deadlines.is_leaving:
            self._deadlines.leave(trio.current_time())
            self.protocol.closes = True

    async def _serve(self) -> Head | ChangeToHttp2 | None:
        """Run exchanges until none follows. The head of a request that came in the moment in which no more were to be
        taken is returned, and has yet to be run; so is a change of the protocol."""
        protocol = self.protocol
        while protocol.state is IDLE or protocol.state is HEAD:
            event = protocol.next_event()
            match event:
                case Head():
                    if protocol.served == protocol.max_requests:
                        self.on_limit("max_requests_per_connection")
                    if self._reading.cancel_called:
                        protocol.closes = True
                        return event
                    await self._run(event)
                    del event  # it may be large, and the next one far
                case Refusal():
                    await self._refuse(event.error)
                case ChangeToHttp2():
                    if event.settings is not None:
                        await self.send(SWITCHING_PROTOCOLS)
                    return event
                case Signal.NEEDS_DATA:
                    await self._wait()
        return None

    async def _wait(self) -> None:
        """For more of a request; between two requests the fast path serves meanwhile."""
        protocol = self.protocol
        if protocol.state is HEAD:
            self._deadlines.begin_head(trio.current_time(), protocol.served)
            await self.receive()
        elif self._is_reading_ahead:
            await self.receive()
        else:
            await self._park()

    async def _park(self) -> None:
        fast_path = self._fast_path
        try:
            await fast_path.wait()
        except FastPathFailed:
            await self._end_failed()
            return
        if fast_path.unfinished is not None:
            await self._finish(fast_path.unfinished)
            fast_path.unfinished = None
        elif self.protocol.state is AWAITING:  # given up, for its client has gone
            self.protocol.lose()

    async def _run(self, head: Head) -> None:
        exchange = Http1Exchange(self, head)
        try:
            await self._app(exchange)
        except ClientGone:
            pass
        except Exception:
            logger.exception("%s %r failed", exchange.method, exchange.raw_path)
            if not exchange.has_started:
                self.protocol.closes = True
                await exchange.reply(error_reply(Internal("internal error")))
        self.protocol.end_exchange()

    async def _finish(self, unfinished: Unfinished) -> None:
        """Answer a request that the fast path has begun to serve."""
        if unfinished.parts:
            await self.send_parts(unfinished.parts)
        elif self._direct is not None:
            is_sent = False
            try:
                reply = await self._direct.encode(unfinished.request)
                if await self.may_send():
                    last = last_lines(reply.request_id, self.date.line())
                    head = self.protocol.begin_response(reply.status, reply.headers, last, reply.length)
                    await self.send_parts((head, reply.body, *reply.tail))
                    is_sent = True
            finally:
                self._direct.note_end(unfinished.request, is_sent)
        self.end_response()

    async def _end_failed(self) -> None:
        """A defect of ours, which is told where no answer has begun."""
        if self.protocol.state is RESPONDING or self.protocol.state is CLOSING:
            self.protocol.lose()
        else:
            await self._refuse(Internal("internal error"))

    # What comes.

    async def read_body(self, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> Buffer:
        """As `Exchange.read_body`, called once for each request that may have a body."""
        here = read_at_once(self.protocol, share)
        if here is not None:
            return here
        await self.send_continue()
        return await IncomingBody(self.protocol, self, limit, share, pause_seconds).read()

    async def send_continue(self) -> None:
        """Implements `BodySource`."""
        if self.protocol.needs_continue:
            await self.send(CONTINUE)

    def stream_body(self, limit: BodyLimit, pause_seconds: float) -> BodyStream:
        """As `Exchange.stream_body`."""
        return StreamedBody(self.protocol, self, limit, pause_seconds)

    async def receive(self) -> None:
        """Implements `BodySource`. What the watcher has begun to read comes by it."""
        if not self._is_reading_ahead:
            self.protocol.receive(await self.wire.receive(RECEIVE_SIZE))
            return
        while self._is_reading_ahead:
            await self._has_read_ahead.wait()

    async def receive_into(self, view: memoryview) -> int:
        """Implements `BodySource`."""
        size = await self.wire.receive_into(view)
        if not size:
            self.protocol.lose()
            raise ClientGone
        return size

    def receive_into_at_once(self, view: memoryview) -> int:
        """Implements `BodySource`."""
        return self.wire.receive_into_at_once(view) or 0

    async def _watch(self) -> None:
        """Read the wire ahead, when told to: the next request is kept, and that the client has gone ends everything.
        One that has only ended its sending direction is probed from then on."""
        protocol = self.protocol
        while True:
            await self._watching.wait()
            if protocol.state not in (AWAITING, RESPONDING, CLOSING):  # the wire may be read already
                continue
            if self.wire.is_lost:
                self._lose()
                continue
            match protocol.next_event():
                case Signal.HALF_CLOSED:
                    await self._probe()
                case Signal.NEEDS_DATA:
                    self._is_reading_ahead = True
                    data = await self.wire.receive(RECEIVE_SIZE)
                    if not data:
                        await ENDS.wait()
                    self._is_reading_ahead = False
                    protocol.receive(data)
                    self._has_read_ahead.wake()

    async def _probe(self) -> None:
        """Whoever has gone resets the connection, which is seen here or at the next look."""
        now = trio.current_time()
        probe = b"" if self._is_sending else self.protocol.probe(now)
        if not probe:
            return
        probing = self._probing = trio.Event()
        try:
            if await self.wire.send(probe, self.limits.send_timeout, self._note_deaf):
                self.protocol.note_probe(now)
            if self.wire.is_lost:
                self._lose()
        finally:
            self._probing = None
            probing.set()

    # Ends.

    async def _time_out(self) -> None:
        if self.protocol.state is HEAD:
            await self._refuse(HeaderTimeout(self.limits.header_timeout))
        elif self.protocol.state is IDLE:
            if not self._deadlines.is_leaving:
                self.on_limit("idle_timeout")
            self.protocol.end()

    async def _refuse(self, error: ServerError) -> None:
        """Answer what is no request, and end the connection."""
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        reply = error_reply(error)
        if self._direct is not None:
            self._direct.note_refused_head(error, reply.status, self.wire.peer)
        head = self.protocol.begin_refusal(reply.status, reply.headers, self.date.line(), len(reply.body))
        await self.send(b"".join((head, reply.body)))
        self.end_response()

    async def _say_goodbye(self) -> None:
        """Let the client close first: closing on bytes that nobody has read would make the kernel reset the connection,
        and the client lose an answer that it has not read."""
        await self.wire.send_eof()
        while await self.wire.receive(RECEIVE_SIZE):
            pass

    # What leaves.

    def linger(self, seconds: float) -> None:
        """The client is still sending what nobody will read; give it that long."""
        self._linger = seconds

    async def may_send(self) -> bool:
        """Whether anything can still be sent, once no probe is under way."""
        while self._probing is not None:
            await self._probing.wait()
        return self.protocol.state is not CLOSED

    def send_chunk_at_once(self, data: bytes) -> bool:
        if self._is_sending or self._probing is not None or not self._is_open:
            return False
        chunk = self.protocol.frame(data)
        sent = self.wire.send_at_once((chunk,))
        if sent == 0:
            return False
        if sent < len(chunk):
            self._unsent = chunk[sent:]
            self._is_sending = True  # until the next piece: nothing else comes in between
        return True

    async def send(self, data: Buffer) -> None:
        self._is_sending = True
        if self._unsent:
            data, self._unsent = b"".join((self._unsent, data)), b""
        if not data:
            self._is_sending = False
            return
        if self._is_open and not await self.wire.send(data, self.limits.send_timeout, self._note_deaf):
            self._lose()  # part of a message may be out, and nothing can follow it
        self._is_sending = False

    async def send_parts(self, parts: Sequence[Buffer]) -> None:
        self._is_sending = True
        if self._is_open and not await self.wire.send_parts(parts, self.limits.send_timeout, self._note_deaf):
            self._lose()
        self._is_sending = False

    @property
    def _is_open(self) -> bool:
        return self.protocol.state is not CLOSED

    def end_response(self) -> None:
        """All of it was sent, unless the client is lost."""
        if self._is_open:
            self.protocol.end_response()

    def _lose(self) -> None:
        """The client has left, or takes nothing any more: what runs for it is cancelled."""
        self.protocol.lose()
        if self._running is not None:
            self._running.cancel()

    def _note_deaf(self) -> None:
        self.on_limit("send_timeout")
