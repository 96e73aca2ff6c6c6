"""One HTTP/2 connection: a reader, a writer, a clock, and its calls.

Flow: socket -> [connection] -> calls … outgoing -> socket. `http2` does the protocol; this module moves bytes, answers
what is no call's, and decides when the connection ends. All frames that one burst of work makes leave in one write.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import trio
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, ProtocolError

from protocol.grpc.call.request_head import malformed_head
from protocol.grpc.connection.calls import Calls, Shared
from protocol.grpc.connection.keepalive import Due, Lifetime, PingPolice
from protocol.grpc.connection.outgoing import Outgoing
from protocol.http2 import events
from protocol.http2.connection import ServerConnection
from protocol.limits.flood import FloodGuard
from protocol.messages import Buffer
from protocol.reactor.poller import Poller
from protocol.reactor.transport import PlainWire, wire_over
from protocol.sync.wakeup import Wakeup

logger = logging.getLogger(__name__)

RECEIVE_SIZE = 65536
MAX_RECEIVE_SIZE = 524288
# Of a frame that is under way: fewer bytes are read together with what follows them.
_IN_PLACE_FROM = 32768
# What may be read together with its end: clients open windows behind a message.
_SIZE_BEHIND = 1024
# How long a peer has to take the last bytes and to close its end.
GOODBYE_SECONDS = 1.0

_KEEPALIVE_PING = b"alive?\0\0"
_RETIRING_PING = b"retiring"


class _CutOffError(ProtocolError):
    """The peer sends more of something than any decent one does; a GOAWAY says so."""


class Connection:
    """A peer's connection. `run` owns the transport and closes it on every way out."""

    def __init__(self, transport: trio.abc.Stream, shared: Shared) -> None:
        limits = shared.limits
        self._wire = wire = wire_over(transport)
        self._plain = wire if isinstance(wire, PlainWire) else None
        self._poller = shared.poller
        self._shared = shared
        self._limits = limits
        self._h2 = ServerConnection(
            max_concurrent_streams=limits.max_concurrent_streams,
            stream_window=limits.stream_window,
            connection_window=limits.connection_window,
            max_header_size=limits.max_header_size,
            interpret=lambda headers: self._calls.read_head(headers),
            refuse=malformed_head,
        )
        self._out = Outgoing(
            self._h2,
            self._wire,
            shared.counts,
            send_timeout=limits.send_timeout,
            connection_window=limits.connection_window,
        )
        self._lifetime = Lifetime(limits, trio.current_time(), age_factor=random.uniform(0.9, 1.1))
        self._calls = Calls(shared, self._out, self._lifetime, self)
        self._now = trio.lowlevel.current_clock().current_time
        self._is_retiring = False  # this connection ends, and its peer opens a new one
        self._is_lost = False  # the peer is gone, or cannot be written to
        self._has_failed = False  # the peer broke the protocol, or we have a defect, and a GOAWAY says so
        self._reading = trio.CancelScope()
        self._size = RECEIVE_SIZE  # of the next read
        self._is_in_sight = False  # of the poller
        self._looked_away = Wakeup()
        self._time_changed = Wakeup()
        self._pings = PingPolice(limits.keepalive)
        self._resets = FloodGuard(limits.max_stream_resets)
        self._control_frames = FloodGuard(limits.max_control_frames)
        self._on_event: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._calls.on_request,
            events.DataReceived: self._calls.on_data,
            events.TrailersReceived: self._calls.on_trailers,
            events.StreamReset: self._calls.on_stream_reset,
            events.WindowUpdated: self._on_window_updated,
            events.RemoteSettingsChanged: self._on_settings_changed,
            events.PingReceived: self._on_ping,
            events.PingAckReceived: self._on_ping_answered,
            events.IgnoredFrame: self._on_ignored_frame,
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
            self._calls.memory.close()

    async def _serve(self) -> None:
        async with contextlib.aclosing(self._wire), trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._keep_time)
            try:
                with self._reading:
                    await self._read(nursery)
            finally:  # before the nursery can close: an answer that comes later must start no task in it
                self._calls.terminate()
            if self._reading.cancelled_caught and trio.current_time() >= self._reading.deadline:
                self._out.count_refusal("handshake_timeout")
            if not self._is_lost:
                with trio.move_on_after(GOODBYE_SECONDS):
                    await self._say_goodbye()
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Take no more calls; `run`, which must have begun, returns when those in progress have ended."""
        if self._calls.is_draining:
            return
        self._out.announce_end()
        self._calls.drain()
        self._end_if_done()

    def cancel(self) -> None:
        """End at once, with what runs."""
        self._reading.cancel()

    def retire(self) -> None:
        """As `drain`, but the server goes on: the calls in progress may go on too, until the grace has passed."""
        if self._calls.is_draining or self._is_retiring:
            return
        self._is_retiring = True
        self._lifetime.on_retired(trio.current_time())
        self._out.announce_end()
        self._out.ping(_RETIRING_PING)  # its answer comes behind the calls that were on their way
        self._time_changed.wake()

    # The reader.

    async def _read(self, nursery: trio.Nursery) -> None:
        self._calls.begin(nursery)
        while True:
            if self._poller is None or self._plain is None:
                room = self._room()
                if room is not None:
                    self._take(room[: await self._wire.receive_into(room)])
                else:
                    size = self._size
                    data = await self._wire.receive(size)
                    self._size = MAX_RECEIVE_SIZE if len(data) == size else RECEIVE_SIZE
                    self._take(data)
                self._end_burst()
                self._shared.flush()
            else:
                await self._be_in_sight(self._poller, self._plain)
            if self._is_lost or self._has_failed:
                return
            await self._out.wait_heard()

    async def _be_in_sight(self, poller: Poller, plain: PlainWire) -> None:
        """Let the poller read, until there is something to wait for, or an end."""
        poller.add(plain.socket, self._read_at_once, self._fail)
        self._is_in_sight = True
        try:
            while self._is_in_sight:
                await self._looked_away.wait()
        finally:
            self._look_away()

    def _look_away(self) -> None:
        if self._is_in_sight:
            assert self._poller is not None
            assert self._plain is not None
            self._is_in_sight = False
            self._poller.remove(self._plain.socket)
            self._looked_away.wake()

    def _read_at_once(self) -> None:
        """Called by the poller."""
        assert self._plain is not None
        room = None if self._h2.frames.under_way is None else self._room()
        if room is None:
            size = self._size
            data = self._plain.receive_at_once(size)
            if data is None:
                return
            self._take(data)
            is_filled = len(data) == size  # more has come
            if is_filled:
                room = self._room()
            self._size = MAX_RECEIVE_SIZE if is_filled and room is None else RECEIVE_SIZE
        if room is not None:  # the rest of a large message, which is mostly there too
            behind = bytearray(_SIZE_BEHIND)
            count = self._plain.receive_into_at_once(room, behind)
            if count is not None:
                self._take(room[:count])
                if count > len(room) and not self._has_failed:
                    self._take(bytes(behind[: count - len(room)]))
        self._end_burst()
        if self._is_lost or self._has_failed or not self._out.is_heard:
            self._look_away()

    def _take(self, data: Buffer) -> None:
        """What has come; nothing at the end."""
        if not data:
            self._is_lost = True
            return
        self._lifetime.on_received(self._now())
        try:
            for event in self._h2.receive_data(data):
                try:
                    self._on_event[type(event)](event)
                except ProtocolError:
                    raise
                except Exception as error:
                    self._fail_event(event, error)
        except ProtocolError as error:  # a GOAWAY that says so to the peer is ready
            logger.debug("closing a gRPC connection: %s", error)
            if type(error) is DenialOfServiceError:
                self._out.count_refusal("max_header_size")
            self._has_failed = True

    def _fail_event(self, event: events.Event, error: Exception) -> None:
        """A defect of ours costs the call that it has met. The other calls are finished, but the peer is asked to open
        its next ones elsewhere: nobody knows what else the defect has left undone."""
        stream_id = getattr(event, "stream_id", None)
        if stream_id is None:
            raise error
        self._shared.failures.note("connection", error, "a gRPC call failed, and its connection ends behind the others")
        self._calls.fail(stream_id)
        self.retire()

    def _fail(self, error: Exception) -> None:
        """The poller's call has raised this: the connection ends, and its calls with an error."""
        self._shared.failures.note("poller", error, "a gRPC connection failed, and ends")
        self._has_failed = True
        self._look_away()
        self._calls.fail_all()
        self._out.go_away(ErrorCodes.INTERNAL_ERROR)

    def _end_burst(self) -> None:
        """All that was read at one time has been taken."""
        if not (self._is_lost or self._has_failed):
            self._out.end_burst()

    def _room(self) -> memoryview | None:
        """Where the rest of a large DATA frame belongs, if that is what comes next."""
        under_way = self._h2.frames.under_way
        if under_way is None or self._has_failed:
            return None
        _, stream_id, left = under_way
        return None if left < _IN_PLACE_FROM else self._calls.room(stream_id, left)

    def _on_window_updated(self, event: events.WindowUpdated) -> None:
        self._out.on_windows_changed()
        too_many = len(event.stream_ids) - self._out.window_updates
        self._out.window_updates = max(0, -too_many)
        for _ in range(too_many):
            self.count_control_frame()

    def _on_settings_changed(self, event: events.RemoteSettingsChanged) -> None:
        self._reading.deadline = math.inf  # the peer speaks HTTP/2
        self._out.on_windows_changed()
        self.count_control_frame()

    def _on_ping(self, event: events.PingReceived) -> None:
        self._note_data_sent()
        if self._pings.on_ping(trio.current_time(), has_calls=bool(self._calls)):
            self._cut_off("http2_max_ping_strikes", b"too_many_pings")

    def _on_ping_answered(self, event: events.PingAckReceived) -> None:
        if event.ping_data == _RETIRING_PING:
            self._refuse_calls()
        self.count_control_frame()

    def _on_ignored_frame(self, event: events.IgnoredFrame) -> None:
        self.count_control_frame()

    def count_control_frame(self) -> None:
        """Implements `calls.Owner`."""
        if not self._control_frames.passes(trio.current_time()):
            self._cut_off("max_control_frames", b"too many control frames")

    def count_reset(self) -> None:
        """Implements `calls.Owner`."""
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
            self._calls.direct.end_late(now)
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
            with trio.move_on_at(min(self._lifetime.wake_at(now), self._calls.direct.next_deadline)):
                await self._time_changed.wait()

    def note_last_end(self) -> None:
        """Implements `calls.Owner`."""
        self._reading.cancel()

    def note_deadline(self) -> None:
        """Implements `calls.Owner`."""
        self._time_changed.wake()

    def _refuse_calls(self) -> None:
        if self._is_retiring and not self._calls.refuses:
            self._calls.refuses = True
            self._out.go_away()
            self._end_if_done()

    def _end_if_done(self) -> None:
        if (self._calls.is_draining or self._calls.refuses) and not self._calls:
            self._reading.cancel()

    # The end.

    async def _write(self) -> None:
        try:
            await self._out.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._is_lost = True
            self._reading.cancel()

    async def _say_goodbye(self) -> None:
        """Write out what is left, GOAWAY at its end, and let the peer close first, so that it loses no response."""
        if not self._has_failed and not self._calls.refuses:
            self._out.go_away()
        await self._out.finish()
        await self._wire.send_eof()
        while await self._wire.receive(RECEIVE_SIZE):
            pass
