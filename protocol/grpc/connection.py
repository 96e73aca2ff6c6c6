"""One HTTP/2 connection: a reader, a writer, and a task for each call.

Flow: socket -> [connection] -> stream -> handler -> stream -> [connection] -> socket. h2 does the protocol; this module
moves bytes and turns events into calls. All frames that one burst of work makes leave in one write. A call's deadline,
its RST_STREAM and the loss of the connection cancel its scope, and with it whatever the handler waits for.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h2.events
import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from protocol.errors import ServerError, Unavailable, Unsupported
from protocol.grpc.codec import Codec
from protocol.grpc.framing import check_encoding
from protocol.grpc.headers import RESPONSE_HEADERS, Header, decode_timeout_seconds, refusal, trailers
from protocol.grpc.http2 import MAX_FRAME_SIZE, ServerConnection
from protocol.grpc.status import status_of
from protocol.grpc.stream import SHUTTING_DOWN, Stream
from protocol.grpc.writer import Writer

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 65536
HANDSHAKE_SECONDS = 20.0
# How long a peer has to take the last bytes and to close its end.
GOODBYE_SECONDS = 1.0
# No more response data than this waits for the socket; calls wait instead.
MAX_BACKLOG = 1 << 20
# Answers to the peer's own frames (PING, SETTINGS, refused streams); a peer that reads none of them is not read either.
MAX_CONTROL_BACKLOG = 1 << 16

_HIGHEST_STREAM_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Sizes are in bytes; windows are what a peer may send before it is read.

    `max_stream_resets` is per second: a peer that opens and resets streams faster than that is cut off.
    `body_timeout` and `send_timeout` are seconds without progress: of a request message that has begun, and of a
    response, after which the call ends.
    """

    max_message_size: int = 2**31 - 1
    max_concurrent_streams: int = 1024
    stream_window: int = 1 << 20
    connection_window: int = 1 << 24
    max_stream_resets: int = 1000
    body_timeout: float = 60.0
    send_timeout: float = 60.0


class Connection:
    """A peer's connection. `run` owns the transport and closes it on every way out."""

    def __init__(
        self,
        transport: trio.abc.HalfCloseableStream,
        handlers: Mapping[str, Handler],
        codec: Codec,
        limits: ConnectionLimits,
    ) -> None:
        self._transport = transport
        self._handlers = handlers
        self._codec = codec
        self._limits = limits
        self._h2 = ServerConnection(
            max_concurrent_streams=limits.max_concurrent_streams,
            stream_window=limits.stream_window,
            connection_window=limits.connection_window,
        )
        self._streams: dict[int, Stream] = {}
        self._writer = Writer(transport, self._on_written, send_timeout=limits.send_timeout)
        self._is_draining = False
        self._is_lost = False  # the peer is gone, or cannot be written to
        self._has_failed = False  # the peer broke the protocol, and a GOAWAY says so
        self._reading = trio.CancelScope()
        self._control_backlog = 0
        self._can_send = trio.lowlevel.ParkingLot()  # here waits who needs the writer's progress or a window
        self._resets = 0
        self._resets_since = -math.inf
        self._on_event: dict[type[h2.events.Event], Callable[[Any], None]] = {
            h2.events.RequestReceived: self._on_request,
            h2.events.DataReceived: self._on_data,
            h2.events.StreamEnded: self._on_stream_ended,
            h2.events.StreamReset: self._on_stream_reset,
            h2.events.WindowUpdated: self._on_window_updated,
            h2.events.RemoteSettingsChanged: self._on_settings_changed,
        }

    async def run(self) -> None:
        """Serve until the peer goes, breaks the protocol, or `drain` was called and no call is left.

        Calls in progress are cancelled on every way out but the last. Cancelling means: close now.
        """
        self._h2.initiate_connection()
        self.flush()
        self._reading.deadline = trio.current_time() + HANDSHAKE_SECONDS
        async with self._transport, trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            with self._reading:
                await self._read(nursery)
            for stream in self._streams.values():
                stream.terminate()
            if not self._is_lost:
                with trio.move_on_after(GOODBYE_SECONDS):
                    await self._say_goodbye()
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Take no more calls; `run`, which must have begun, returns when those in progress have ended."""
        if self._is_draining:
            return
        self._is_draining = True
        self._h2.close_connection(last_stream_id=_HIGHEST_STREAM_ID)
        self.flush()
        for stream in self._streams.values():
            stream.drain()
        if not self._streams:
            self._reading.cancel()

    # The reader.

    async def _read(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        while True:
            try:
                data = await self._transport.receive_some(RECEIVE_SIZE)
            except trio.BrokenResourceError:
                data = b""
            if not data:
                self._is_lost = True
                return
            try:
                for event in self._h2.receive_data(data):
                    on_event = self._on_event.get(type(event))
                    if on_event is not None:
                        on_event(event)
            except ProtocolError as error:  # h2 has a GOAWAY ready that says so to the peer
                logger.debug("closing a gRPC connection: %s", error)
                self._has_failed = True
                return
            before = self._writer.backlog
            self.flush()
            self._control_backlog += self._writer.backlog - before
            while self._control_backlog > MAX_CONTROL_BACKLOG:
                await self._can_send.park()

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        headers: Sequence[Header] = event.headers  # bytes, as header_encoding is None
        has_ended = event.stream_ended is not None
        fields = dict(headers)
        if len(self._streams) >= self._limits.max_concurrent_streams:  # some are reset, but their handlers not gone
            with contextlib.suppress(ProtocolError):  # this one is reset as well, in the same burst
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        if (response := refusal(fields)) is not None:
            self._end_stream(stream_id, response, has_ended)
            return
        method = fields.get(b":path", b"").decode("latin-1")
        try:
            stream = self._open_stream(stream_id, method, fields, headers)
        except ServerError as error:
            status, message = status_of(error, method)
            self._end_stream(stream_id, [*RESPONSE_HEADERS, *trailers(status, message)], has_ended)
            return
        self._streams[stream_id] = stream
        self._nursery.start_soon(self._call, stream, self._handlers[method].func)

    def _open_stream(
        self, stream_id: int, method: str, fields: Mapping[bytes, bytes], headers: Sequence[Header]
    ) -> Stream:
        handler = self._handlers.get(method)
        if handler is None:
            raise Unsupported(f"unknown method '{method[:200]}'")
        if self._is_draining:
            raise Unavailable(SHUTTING_DOWN)
        timeout = fields.get(b"grpc-timeout")
        encoding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        check_encoding(encoding)
        return Stream(
            self,
            stream_id,
            method,
            handler,
            headers,
            self._codec,
            deadline=math.inf if timeout is None else trio.current_time() + decode_timeout_seconds(timeout),
            encoding=encoding,
            max_message_size=self._limits.max_message_size,
            body_timeout=self._limits.body_timeout,
        )

    def _on_data(self, event: h2.events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:  # answered without waiting for it
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        else:
            stream.feed(event.data, event.flow_controlled_length)

    def _on_stream_ended(self, event: h2.events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.end()

    def _on_stream_reset(self, event: h2.events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.terminate()
        now = trio.current_time()
        if now - self._resets_since > 1:
            self._resets, self._resets_since = 0, now
        self._resets += 1
        if self._resets > self._limits.max_stream_resets:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            raise ProtocolError(f"more than {self._limits.max_stream_resets} streams reset in a second")

    def _on_window_updated(self, event: h2.events.WindowUpdated) -> None:
        self._can_send.unpark_all()

    def _on_settings_changed(self, event: h2.events.RemoteSettingsChanged) -> None:
        self._reading.deadline = math.inf  # the peer speaks HTTP/2
        self._can_send.unpark_all()  # windows may have grown

    # One call.

    async def _call(self, stream: Stream, handle: Callable[[Stream], Any]) -> None:
        status, message = Status.OK, ""
        try:
            with stream.scope:
                if not stream.is_closed:
                    try:
                        await handle(stream)
                    except StreamTerminatedError:
                        stream.is_closed = True
                    except Exception as error:
                        status, message = status_of(error, stream.method)
            if stream.scope.cancelled_caught:  # by the peer, who hears nothing any more, or by the deadline
                status, message = Status.DEADLINE_EXCEEDED, "the call's deadline has passed"
        finally:
            del self._streams[stream.id]
            self.acknowledge(stream.id, stream.take_unacknowledged())
        if not stream.is_closed:
            start = () if stream.has_sent_headers else RESPONSE_HEADERS
            self._end_stream(stream.id, [*start, *trailers(status, message)], stream.has_ended)
        self.flush()
        if self._is_draining and not self._streams:
            self._reading.cancel()

    def _end_stream(self, stream_id: int, headers: Sequence[Header], has_ended: bool) -> None:
        """Send the last headers; if the peer still sends, tell it that nobody reads on."""
        with contextlib.suppress(ProtocolError):  # reset, or the connection has ended
            self._h2.send_headers(stream_id, headers, end_stream=True)
            if not has_ended:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)

    # What streams ask for.

    def acknowledge(self, stream_id: int, size: int) -> None:
        if size:
            with contextlib.suppress(ProtocolError):  # the connection has ended
                self._h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def send_headers(self, stream_id: int, headers: Sequence[Header]) -> None:
        try:
            self._h2.send_headers(stream_id, headers)
        except ProtocolError as error:
            raise StreamTerminatedError(str(error)) from None

    async def send_data(self, stream_id: int, data: bytes) -> None:
        """No checkpoint where nothing has to be waited for. A stream whose window stays shut is reset."""
        connection = self._h2
        view = memoryview(data)
        progress = trio.current_time()
        try:
            while True:
                window = connection.local_flow_control_window(stream_id)
                size = min(len(view), window, connection.max_outbound_frame_size, MAX_FRAME_SIZE)
                if size > 0 and self._writer.backlog < MAX_BACKLOG:
                    connection.send_data(stream_id, view[:size])
                    view = view[size:]
                    if not view:
                        return
                    self.flush()
                    progress = trio.current_time()
                else:
                    self.flush()
                    with trio.move_on_at(progress + self._limits.send_timeout) as waiting:
                        await self._can_send.park()
                    if waiting.cancelled_caught:
                        connection.reset_stream(stream_id, ErrorCodes.CANCEL)
                        raise StreamTerminatedError("the client takes no response data")
        except ProtocolError as error:
            raise StreamTerminatedError(str(error)) from None

    # What is written.

    def flush(self) -> None:
        """Hand the frames made so far to the writer."""
        data = self._h2.data_to_send()
        if data:
            self._writer.put(data)

    def _on_written(self) -> None:
        self._control_backlog = 0
        self._can_send.unpark_all()

    async def _write(self) -> None:
        try:
            await self._writer.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._is_lost = True
            self._reading.cancel()

    async def _say_goodbye(self) -> None:
        """Write out what is left, GOAWAY at its end, and let the peer close first, so that it loses no response."""
        if not self._has_failed:
            self._h2.close_connection()
        self.flush()
        await self._writer.finish()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._transport.send_eof()
            while await self._transport.receive_some(RECEIVE_SIZE):
                pass
