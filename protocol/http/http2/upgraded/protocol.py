"""hypercorn's HTTP/2 protocol for upgraded connections, with limits on what a client may cost.

    bytes -> h2 -> [protocol] -> hypercorn's HTTPStream -> the application … a buffer for each stream -> bytes

An error on a stream ends that stream alone. Floods end the connection: streams that are opened and reset again
(CVE-2023-44487), frames that only make work (CVE-2019-9512 and its like), header lists far over the limit. h2 itself
bounds CONTINUATION frames and what HPACK may unfold.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import h2.events
import trio
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, FlowControlError, ProtocolError
from h2.settings import SettingCodes, Settings
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as TransportEvent
from hypercorn.protocol.events import Body, EndBody, Event
from hypercorn.protocol.h2 import BufferCompleteError, H2Protocol, StreamBuffer

from protocol.errors import ServerError
from protocol.http.errors import HeadersTooLarge, LimitError, MethodNotAllowed, TooManyStreams, error_reply
from protocol.http.settings import ConnectionLimits
from protocol.http2.h2_connection import HIGHEST_STREAM_ID, PatientConnection
from protocol.http2.output import UPDATES_PER_STREAM, updates_for
from protocol.limits.flood import FloodGuard

# What an entry of a header list counts beside its name and value (RFC 9113, 6.5.2).
_ENTRY_OVERHEAD = 32
# A response goes to its stream in such pieces, each with its own time to move.
_PIECE = 64 * 1024
_LOW_WATER = 16 * 1024

_CONTROL_EVENTS = (
    h2.events.PingReceived,
    h2.events.RemoteSettingsChanged,
    h2.events.SettingsAcknowledged,
    h2.events.PriorityUpdated,
    h2.events.UnknownFrameReceived,
    h2.events.WindowUpdated,  # beyond those that a client has reason to send
)


class UpgradedHttp2(H2Protocol):
    """Made and driven by `connection.UpgradedConnection`, which calls `prepare` first."""

    limits: ConnectionLimits
    on_limit: Callable[[str], None]
    has_begun = False  # a head that is cut off waits with the connection's idle time

    def prepare(self, limits: ConnectionLimits, on_limit: Callable[[str], None]) -> None:
        self.limits = limits
        self.on_limit = on_limit
        self._resets = FloodGuard(limits.max_stream_resets)
        self._control_frames = FloodGuard(limits.max_control_frames)
        self._window_updates = 0  # that the client has reason to send
        self._unfinished: set[int] = set()  # streams whose request has not ended
        self._is_draining = False
        self._has_failed = False
        self.connection = PatientConnection(H2Configuration(client_side=False, header_encoding=None))
        # Twice what clients are told: what is a little too much gets an answer, only far more ends the connection.
        self.connection.decoder.max_header_list_size = 2 * limits.max_header_size
        self.connection.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_size,
            },
        )

    @property
    def idle(self) -> bool:
        return not self.streams and not self.stream_buffers

    @property
    def _is_full(self) -> bool:
        return len(self.streams) >= self.limits.max_concurrent_streams

    @property
    def may_get_more(self) -> bool:
        """Whether the client may still be sending data that will not be read."""
        return self._has_failed or bool(self._unfinished)

    async def initiate(self, headers: list[tuple[bytes, bytes]] | None = None, settings: bytes | None = None) -> None:
        """Begin, after an upgrade with its settings and the headers of its request.

        Raises:
            h2.exceptions.ProtocolError: the settings hold wrong values.
        """
        if settings is None:
            self.connection.initiate_connection()
        else:
            self.connection.initiate_upgrade_connection(settings)
        await self._flush()
        self.task_group.spawn(self.send_task)
        if headers is not None:
            request = h2.events.RequestReceived(stream_id=1, headers=headers)
            await self._create_stream(request)
            await self._handle_events([h2.events.StreamEnded(stream_id=1)])

    async def drain(self) -> None:
        """Tell the client to open no more streams; the connection ends with the last one."""
        if not self._is_draining:
            self._is_draining = True
            self.connection.close_connection(last_stream_id=HIGHEST_STREAM_ID)
            await self._flush()
            await self._close_if_drained()

    async def time_out(self) -> None:
        """Nothing was asked for in a long time."""
        await self._end()

    # From the client.

    async def handle(self, event: TransportEvent) -> None:
        if not isinstance(event, RawData):
            await super().handle(event)
            return
        try:
            events = self.connection.receive_data(event.data)
        except ProtocolError as error:  # h2 has a GOAWAY ready that says so to the client
            if type(error) is DenialOfServiceError:
                self.on_limit("max_header_size")
            self._has_failed = True
            await self._flush()
            await self.send(Closed())
        else:
            await self._handle_events(events)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        received_at = trio.current_time()  # of all, however long it takes to handle them
        for event in events:
            if not self._is_bearable(event, received_at):
                self._has_failed = True
                await self._end(ErrorCodes.ENHANCE_YOUR_CALM)
                return
            match event:
                case h2.events.RequestReceived():
                    await self._create_stream(event)
                case h2.events.PriorityUpdated():
                    pass  # deprecated, and a way to make this side keep a tree
                case h2.events.ConnectionTerminated():
                    self._is_draining = True
                    await self._close_if_drained()
                case h2.events.DataReceived() if event.stream_id not in self.streams:  # of one that was answered
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case _:
                    await self._handle_event(event)
        await self._flush()

    async def _handle_event(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
            self._unfinished.discard(event.stream_id)
            if isinstance(event, h2.events.StreamReset) and (buffer := self.stream_buffers.get(event.stream_id)):
                await buffer.close()  # the sending task then finds the stream closed, and forgets it
        await super()._handle_events([event])

    def _is_bearable(self, event: h2.events.Event, received_at: float) -> bool:
        if isinstance(event, h2.events.StreamReset):
            guard, name = self._resets, "max_stream_resets"
        elif self._is_control(event):
            guard, name = self._control_frames, "max_control_frames"
        else:
            return True
        if guard.passes(received_at):
            return True
        self.on_limit(name)
        return False

    def _is_control(self, event: h2.events.Event) -> bool:
        match event:
            case h2.events.WindowUpdated() if self._window_updates:
                self._window_updates -= 1
                return False
            case h2.events.DataReceived():
                return not event.data and event.stream_ended is None
            case h2.events.RequestReceived():
                return self._is_full
            case _:
                return isinstance(event, _CONTROL_EVENTS)

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        """Start the application on a request, or answer in its place, or reset the stream if it is no request."""
        self._window_updates += UPDATES_PER_STREAM
        stream_id = request.stream_id
        fields = dict(request.headers)
        path, method = fields.get(b":path", b""), fields.get(b":method", b"")
        if self._is_draining:
            self._reset(stream_id, ErrorCodes.REFUSED_STREAM)  # says that it may be tried again elsewhere
        elif (error := self._refusal(request, method)) is not None:
            self._answer(request, error)
        elif not path or not path.isascii() or not method.isascii():
            self._reset(stream_id, ErrorCodes.PROTOCOL_ERROR)
        else:
            self._unfinished.add(stream_id)
            await super()._create_stream(request)
            self.stream_buffers[stream_id] = _Buffer(self.context.event_class)
            await self.send(Updated(idle=False))
            if self.keep_alive_requests == self.limits.max_requests_per_connection:
                self.on_limit("max_requests_per_connection")
                await self.drain()

    def _refusal(self, request: h2.events.RequestReceived, method: bytes) -> ServerError | None:
        limits = self.limits
        if sum(len(name) + len(value) + _ENTRY_OVERHEAD for name, value in request.headers) > limits.max_header_size:
            return HeadersTooLarge(limits.max_header_size)
        if self._is_full:  # perhaps it was opened before the client knew how many there may be
            return TooManyStreams(limits.max_concurrent_streams)
        if method == b"CONNECT":  # hypercorn would take it for a WebSocket
            return MethodNotAllowed(())
        return None

    # To the client.

    def _answer(self, request: h2.events.RequestReceived, error: ServerError) -> None:
        """Answer without the application, for whom this stream does not exist."""
        if isinstance(error, LimitError):
            self.on_limit(error.limit)
        reply = error_reply(error)
        headers = [(b":status", b"%d" % reply.status), *reply.headers, (b"content-length", b"%d" % len(reply.body))]
        # Without room for the body nothing is sent, so that the reset is the whole answer.
        try:
            if self.connection.local_flow_control_window(request.stream_id) < len(reply.body):
                raise FlowControlError
            self.connection.send_headers(request.stream_id, [*headers, *self.config.response_headers("h2")])
            self.connection.send_data(request.stream_id, reply.content, end_stream=True)
        except ProtocolError:  # or it was reset in the same burst
            code = ErrorCodes.REFUSED_STREAM if isinstance(error, TooManyStreams) else ErrorCodes.CANCEL
            self._reset(request.stream_id, code)
        else:
            if request.stream_ended is None:
                self._reset(request.stream_id, ErrorCodes.NO_ERROR)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with suppress(ProtocolError):  # closed already
            self.connection.reset_stream(stream_id, code)

    async def stream_send(self, event: Event) -> None:
        """What the application sends. A client that takes none of it for a while loses its stream."""
        if isinstance(event, Body):
            self._window_updates += updates_for(len(event.data))
            for start in range(0, len(event.data), _PIECE):
                await self._send_in_time(Body(event.stream_id, event.data[start : start + _PIECE]))
        elif isinstance(event, EndBody):
            await self._send_in_time(event)
        else:
            await super().stream_send(event)
            await self._close_if_drained()

    async def _send_in_time(self, event: Event) -> None:
        with trio.move_on_after(self.limits.send_timeout) as sending:
            await super().stream_send(event)
        if sending.cancelled_caught:
            self.on_limit("send_timeout")
            self._reset(event.stream_id, ErrorCodes.CANCEL)
            if buffer := self.stream_buffers.get(event.stream_id):
                await buffer.close()
            await self._close_stream(event.stream_id)
            await self._window_updated(event.stream_id)  # wakes the sending task, as for a reset by the client
            await self._flush()

    async def _send_data(self, stream_id: int) -> None:
        await super()._send_data(stream_id)
        if stream_id not in self.stream_buffers:
            if stream_id in self._unfinished:  # all is answered: the client may stop sending
                self._unfinished.discard(stream_id)
                self._reset(stream_id, ErrorCodes.NO_ERROR)
                await self._flush()
            await self._close_if_drained()

    async def _close_if_drained(self) -> None:
        if self.idle:
            if self._is_draining:
                await self._end()
            else:
                await self.send(Updated(idle=True))

    async def _end(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        with suppress(ProtocolError):
            self.connection.close_connection(code)
        await self._flush()
        await self.send(Closed())


class _Buffer(StreamBuffer):
    """A response on its way to its stream's window. hypercorn's lets a response grow without end while the window is
    shut."""

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        if len(self.buffer) > _LOW_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) <= _LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data
