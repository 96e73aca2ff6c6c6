"""One HTTP/2 connection: a reader, a writer, a clock, and a task for each call.

Flow: socket -> [connection] -> stream -> handler -> stream -> outgoing -> socket. `http2` does the protocol; this
module moves bytes and turns events into calls. All frames that one burst of work makes leave in one write. A call's
deadline, its RST_STREAM and the loss of the connection cancel its scope, and with it whatever the handler waits for.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError

from protocol.errors import Unavailable
from protocol.flood import FloodGuard
from protocol.grpc.call_tasks import CallTasks
from protocol.grpc.codec import Codec
from protocol.grpc.headers import OK_TRAILERS, RESPONSE_HEADERS, Header, error_response, trailers
from protocol.grpc.http2 import events
from protocol.grpc.http2.connection import ServerConnection
from protocol.grpc.http2.request_headers import Headers
from protocol.grpc.keepalive import Due, Lifetime, PingPolice
from protocol.grpc.outgoing import Outgoing
from protocol.grpc.receiving import ReceiveMemory
from protocol.grpc.request_head import RequestHead, read_head
from protocol.grpc.settings import ConnectionLimits
from protocol.grpc.status import status_of
from protocol.grpc.stream import SHUTTING_DOWN, Stream
from protocol.limits import LimitCounter
from protocol.messages import Buffer
from protocol.request_memory import RequestMemory
from protocol.wakeup import Wakeup
from protocol.wire import wire_over

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 65536
MAX_RECEIVE_SIZE = 524288
# Of a frame that is under way: fewer bytes are read together with what follows them.
_IN_PLACE_FROM = 32768
# How long a peer has to take the last bytes and to close its end.
GOODBYE_SECONDS = 1.0

_KEEPALIVE_PING = b"alive?\0\0"
_RETIRING_PING = b"retiring"
# Windows that a peer may open for a call before it gets anything.
_UPDATES_PER_CALL = 4


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """What all connections of a server have in common. `threads` bounds compression and decompression."""

    handlers: Mapping[str, Handler]
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    counts: LimitCounter = field(default_factory=LimitCounter)
    memory: RequestMemory = field(default_factory=lambda: RequestMemory(sys.maxsize))
    codec: Codec = field(default_factory=Codec)
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(4))


class _CutOffError(ProtocolError):
    """The peer sends more of something than any decent one does; a GOAWAY says so."""


class Connection:
    """A peer's connection. `run` owns the transport and closes it on every way out."""

    def __init__(self, transport: trio.abc.Stream, shared: Shared) -> None:
        limits = shared.limits
        self._wire = wire_over(transport)
        self._shared = shared
        self._limits = limits
        self._h2 = ServerConnection(
            max_concurrent_streams=limits.max_concurrent_streams,
            stream_window=limits.stream_window,
            connection_window=limits.connection_window,
            max_header_size=limits.max_header_size,
            interpret=self._read_head,
        )
        self._out = Outgoing(self._h2, self._wire, shared.counts, send_timeout=limits.send_timeout)
        self._memory = ReceiveMemory(limits.max_receive_memory, shared.memory, shared.threads)
        self._streams: dict[int, Stream] = {}
        self._is_draining = False  # the server stops
        self._is_retiring = False  # this connection ends, and its peer opens a new one
        self._refuses_calls = False  # and has had the time to hear of it
        self._is_lost = False  # the peer is gone, or cannot be written to
        self._has_failed = False  # the peer broke the protocol, and a GOAWAY says so
        self._reading = trio.CancelScope()
        self._time_changed = Wakeup()
        self._lifetime = Lifetime(limits, trio.current_time(), age_factor=random.uniform(0.9, 1.1))
        self._pings = PingPolice(limits.keepalive)
        self._resets = FloodGuard(limits.max_stream_resets)
        self._control_frames = FloodGuard(limits.max_control_frames)
        self._on_event: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._on_request,
            events.DataReceived: self._on_data,
            events.TrailersReceived: self._on_trailers,
            events.StreamReset: self._on_stream_reset,
            events.WindowUpdated: self._on_window_updated,
            events.RemoteSettingsChanged: self._on_settings_changed,
            events.PingReceived: self._on_ping,
            events.PingAckReceived: self._on_ping_answered,
            events.IgnoredFrame: self._on_control_frame,
        }

    async def run(self) -> None:
        """Serve until the peer goes, breaks the protocol, or `drain` or `retire` was called and no call is left.

        Calls in progress are cancelled on every way out but the last. Cancelling means: close now.
        """
        self._h2.initiate_connection()
        self._out.flush()
        self._reading.deadline = trio.current_time() + self._limits.handshake_timeout
        try:
            await self._serve()
        finally:
            self._memory.close()

    async def _serve(self) -> None:
        async with contextlib.aclosing(self._wire), trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._keep_time)
            with self._reading:
                await self._read(nursery)
            if self._reading.cancelled_caught and trio.current_time() >= self._reading.deadline:
                self._out.count_refusal("handshake_timeout")
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
        self._out.announce_end()
        for stream in self._streams.values():
            stream.drain()
        self._end_if_done()

    def retire(self) -> None:
        """As `drain`, but the server goes on: the calls in progress may go on too, until the grace has passed."""
        if self._is_draining or self._is_retiring:
            return
        self._is_retiring = True
        self._lifetime.on_retired(trio.current_time())
        self._out.announce_end()
        self._out.ping(_RETIRING_PING)  # its answer comes behind the calls that were on their way
        self._time_changed.wake()

    # The reader.

    async def _read(self, nursery: trio.Nursery) -> None:
        self._tasks = CallTasks(nursery, self._handle, self._close_call, self._end_call)
        size = RECEIVE_SIZE
        while True:
            data: Buffer
            room = self._room()
            if room is not None:
                data = room[: await self._wire.receive_into(room)]
                size = RECEIVE_SIZE
            else:
                data = await self._wire.receive(size)
                size = MAX_RECEIVE_SIZE if len(data) == size else RECEIVE_SIZE  # more has come
            if not data:
                self._is_lost = True
                return
            self._lifetime.on_received(trio.current_time())
            try:
                for event in self._h2.receive_data(data):
                    self._on_event[type(event)](event)
            except ProtocolError as error:  # a GOAWAY that says so to the peer is ready
                logger.debug("closing a gRPC connection: %s", error)
                if type(error) is DenialOfServiceError:
                    self._out.count_refusal("max_header_size")
                self._has_failed = True
                return
            await self._out.answer_peer()

    def _room(self) -> memoryview | None:
        """Where the rest of a large DATA frame belongs, if that is what comes next."""
        under_way = self._h2.data_under_way
        if under_way is None or under_way[1] < _IN_PLACE_FROM:
            return None
        stream = self._streams.get(under_way[0])
        return None if stream is None else stream.room(under_way[1])

    def _read_head(self, headers: Headers) -> RequestHead:
        return read_head(headers, self._shared.handlers, self._limits.max_header_size)

    def _on_request(self, event: events.RequestReceived) -> None:
        stream_id, has_ended = event.stream_id, event.stream_ended
        head: RequestHead = event.request
        self._out.window_updates += _UPDATES_PER_CALL
        if len(self._streams) >= self._limits.max_concurrent_streams:  # some are reset, but their handlers not gone
            self._out.count_refusal("max_concurrent_streams")
            self._out.refuse_stream(stream_id)
            self._on_control_frame(event)
            return
        if self._refuses_calls:
            self._out.refuse_stream(stream_id)
            return
        if head.handler is None:
            if head.limit is not None:
                self._out.count_refusal(head.limit)
            self._out.end_stream(stream_id, head.refusal or (), peer_has_ended=has_ended)
            return
        if self._is_draining:
            response = error_response(Unavailable(SHUTTING_DOWN), head.method)
            self._out.end_stream(stream_id, response, peer_has_ended=has_ended)
            return
        stream = Stream(self._out, stream_id, head, self._shared.codec, self._limits, self._memory)
        stream.has_ended = has_ended
        if not self._streams:
            self._lifetime.on_calls_changed(trio.current_time(), has_calls=True)
        self._streams[stream_id] = stream
        self._tasks.start(stream)

    def _on_data(self, event: events.DataReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:  # answered without waiting for it
            self._out.acknowledge(event.stream_id, event.flow_controlled_length)
        else:
            stream.feed(event.data, event.flow_controlled_length, has_ended=event.stream_ended)
        if not event.data and not event.stream_ended:
            self._on_control_frame(event)

    def _on_trailers(self, event: events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is not None:
            stream.end()

    def _on_stream_reset(self, event: events.StreamReset) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self._on_control_frame(event)
            return
        stream.terminate()
        self._count_reset()

    def _on_window_updated(self, event: events.WindowUpdated) -> None:
        self._out.on_windows_changed()
        if self._out.window_updates:
            self._out.window_updates -= 1
        else:
            self._on_control_frame(event)

    def _on_settings_changed(self, event: events.RemoteSettingsChanged) -> None:
        self._reading.deadline = math.inf  # the peer speaks HTTP/2
        self._out.on_windows_changed()
        self._on_control_frame(event)

    def _on_ping(self, event: events.PingReceived) -> None:
        self._note_data_sent()
        if self._pings.on_ping(trio.current_time(), has_calls=bool(self._streams)):
            self._cut_off("http2_max_ping_strikes", b"too_many_pings")

    def _on_ping_answered(self, event: events.PingAckReceived) -> None:
        if event.ping_data == _RETIRING_PING:
            self._refuse_calls()
        self._on_control_frame(event)

    def _on_control_frame(self, event: events.Event) -> None:
        """A frame that carries nothing of a call, or one of a call too many."""
        if not self._control_frames.passes(trio.current_time()):
            self._cut_off("max_control_frames", b"too many control frames")

    def _count_reset(self) -> None:
        if not self._resets.passes(trio.current_time()):
            self._cut_off("max_stream_resets", b"too many streams reset")

    def _cut_off(self, limit: str, reason: bytes) -> None:
        self._out.count_refusal(limit)
        self._out.go_away(ErrorCodes.ENHANCE_YOUR_CALM, reason)
        raise _CutOffError(reason.decode())

    # Time.

    def _note_data_sent(self) -> None:
        if self._out.has_sent_data:
            self._out.has_sent_data = False
            self._pings.on_data_sent()
            self._lifetime.on_data_sent()

    async def _keep_time(self) -> None:
        while True:
            now = trio.current_time()
            self._note_data_sent()
            while (due := self._lifetime.due(now)) is not None:
                match due:
                    case Due.PING:
                        self._out.ping(_KEEPALIVE_PING)
                    case Due.END_IDLE:
                        self._out.count_refusal("max_connection_idle")
                        self.retire()
                    case Due.END_OLD:
                        self.retire()
                    case Due.REFUSE_CALLS:
                        self._refuse_calls()
                    case Due.CLOSE | Due.CLOSE_DEAD:
                        if due is Due.CLOSE_DEAD:
                            self._out.count_refusal("keepalive_timeout")
                        self._reading.cancel()
                        return
            with trio.move_on_at(self._lifetime.wake_at(now)):
                await self._time_changed.wait()

    def _refuse_calls(self) -> None:
        if self._is_retiring and not self._refuses_calls:
            self._refuses_calls = True
            self._out.go_away()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if (self._is_draining or self._refuses_calls) and not self._streams:
            self._reading.cancel()

    # One call.

    async def _handle(self, stream: Stream) -> Sequence[Header]:
        if not stream.is_closed:
            try:
                await stream.handle(stream)
            except StreamTerminatedError:
                stream.is_closed = True
            except Exception as error:
                return trailers(*status_of(error, stream.method))
        return OK_TRAILERS

    def _close_call(self, stream: Stream) -> None:
        del self._streams[stream.id]
        stream.close()

    def _end_call(self, stream: Stream, ending: Sequence[Header] | None) -> None:
        if not stream.is_closed:
            if ending is None:
                ending = trailers(Status.DEADLINE_EXCEEDED, "the call's deadline has passed")
            if not stream.has_sent_headers:
                ending = (*RESPONSE_HEADERS, *ending)
            self._out.end_stream(stream.id, ending, peer_has_ended=stream.has_ended)
        self._out.flush()
        if not self._streams:
            self._lifetime.on_calls_changed(trio.current_time(), has_calls=False)
            self._end_if_done()

    # The end.

    async def _write(self) -> None:
        try:
            await self._out.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._is_lost = True
            self._reading.cancel()

    async def _say_goodbye(self) -> None:
        """Write out what is left, GOAWAY at its end, and let the peer close first, so that it loses no response."""
        if not self._has_failed and not self._refuses_calls:
            self._out.go_away()
        await self._out.finish()
        await self._wire.send_eof()
        while await self._wire.receive(RECEIVE_SIZE):
            pass
