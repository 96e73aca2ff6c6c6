"""An HTTP/2 connection of the gRPC edge: reader, writer, keepalive timer, and its calls.

Flow: transport -> `http2.reader` -> [connection] -> calls … outgoing -> transport. `http2` does the protocol; this
module answers what is no call's, and decides when the connection ends. All frames that one burst of work makes leave in
one write.

Owned by the edge's server, which runs `run` in a task of its nursery; cancelling it closes the transport at once, and
cancels the calls.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable
from typing import Any

import trio
from h2.errors import ErrorCodes

from protocol.grpc.call.request_head import malformed_head
from protocol.grpc.connection.calls import Calls, Shared
from protocol.grpc.connection.keepalive import Due, Lifetime, PingPolice
from protocol.grpc.connection.outgoing import Outgoing
from protocol.http2 import events
from protocol.http2.connection import ServerConnection
from protocol.http2.driver import ConnectionDriver
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.output import RETIRING_PING
from protocol.http2.reader import Http2Reader
from protocol.reactor.tls_wire import TlsWire
from protocol.reactor.transport import wire_over
from protocol.sync.wakeup import Wakeup

# How long a peer has to take the last bytes and to close its end.
GOODBYE_SECONDS = 1.0

_KEEPALIVE_PING = b"alive?\0\0"


class Connection:
    """A peer's connection. `run` owns the transport and closes it on every way out. `peer` is the client's address
    where the transport does not know it."""

    __slots__ = (
        "_calls",
        "_driver",
        "_floods",
        "_h2",
        "_is_retiring",
        "_lifetime",
        "_limits",
        "_out",
        "_pings",
        "_shared",
        "_time_changed",
        "_wire",
    )

    def __init__(self, transport: trio.abc.Stream | TlsWire, shared: Shared, peer: str | None = None) -> None:
        limits = shared.limits
        self._wire = transport if isinstance(transport, TlsWire) else wire_over(transport, peer)
        self._shared = shared
        self._limits = limits
        self._h2 = ServerConnection(
            max_concurrent_streams=limits.max_concurrent_streams,
            stream_window=limits.stream_window,
            connection_window=limits.connection_window,
            max_header_size=limits.max_header_size,
            interpret=shared.read_head,
            refuse=malformed_head,
        )
        self._out = Outgoing(
            self._h2,
            self._wire,
            shared.counts,
            shared.memory,
            send_timeout=limits.send_timeout,
            connection_window=limits.connection_window,
        )
        self._lifetime = Lifetime(limits, trio.current_time(), age_factor=random.uniform(0.9, 1.1))
        self._floods = FloodLimits(
            self._out, max_control_frames=limits.max_control_frames, max_stream_resets=limits.max_stream_resets
        )
        self._calls = Calls(shared, self._out, self._lifetime, self._floods, self)
        self._is_retiring = False  # this connection ends, and its peer opens a new one
        self._time_changed = Wakeup()
        self._pings = PingPolice(limits.keepalive)
        on_event: dict[type[events.Event], Callable[[Any], None]] = {
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
        reader = Http2Reader(
            self._wire,
            shared.poller,
            self._out,
            self._h2,
            self._floods,
            self,
            on_event,
            on_received=self._lifetime.on_received,
        )
        self._driver = ConnectionDriver(self._h2, reader, self._out, goodbye_seconds=GOODBYE_SECONDS)

    @property
    def call_count(self) -> int:
        """The calls under way."""
        return len(self._calls)

    async def run(self) -> None:
        """Serve until the peer goes, breaks the protocol, or `drain` or `retire` was called and no call is left.

        Calls in progress are cancelled on every way out but the last. Cancelling means: close now.
        """
        self._driver.initiate()
        self._driver.reading.deadline = trio.current_time() + self._limits.handshake_timeout
        try:
            await self._serve()
        finally:
            self._calls.memory.close()
            # What refers to itself is left to the garbage collector, and looked at with all that there is.
            self._calls.detach()
            del self._driver

    async def _serve(self) -> None:
        async with contextlib.aclosing(self._wire), trio.open_nursery() as nursery:
            nursery.start_soon(self._driver.write)
            nursery.start_soon(self._keep_time)
            try:
                self._calls.begin(nursery)
                await self._driver.read()
                await self._calls.give_up()
            finally:  # before the nursery can close: an answer that comes later must start no task in it
                self._calls.terminate()
            reading = self._driver.reading
            if reading.cancelled_caught and trio.current_time() >= reading.deadline:
                self._out.count_refusal("handshake_timeout")
            await self._driver.finish(is_refusing=self._calls.refuses)
            nursery.cancel_scope.cancel()

    def drain(self) -> None:
        """Take no more calls; `run`, which must have begun, returns when those in progress have ended."""
        if self._calls.is_draining:
            return
        self._out.announce_end()
        self._calls.drain()
        self._end_if_done()

    def cancel(self) -> None:
        """End at once, and cancel what runs."""
        self._driver.stop()

    def retire(self) -> None:
        """As `drain`, but the server goes on: the calls in progress may go on too, until the grace has passed."""
        if self._calls.is_draining or self._is_retiring:
            return
        self._is_retiring = True
        self._lifetime.on_retired(trio.current_time())
        self._out.announce_end()
        self._out.ping(RETIRING_PING)
        self._time_changed.wake()

    # What the reader asks of its owner.

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Implements `reader.Owner`."""
        return self._calls.room(stream_id, size)

    def fail_stream(self, stream_id: int, error: Exception) -> None:
        """Implements `reader.Owner`. The other calls are finished, but the peer is asked to open its next ones
        elsewhere: nobody knows what else the defect has left undone."""
        self._shared.failures.note("connection", error, "a gRPC call failed, and its connection ends behind the others")
        self._calls.fail(stream_id)
        self.retire()

    def fail(self, error: Exception) -> None:
        """Implements `reader.Owner`."""
        self._shared.failures.note("poller", error, "a gRPC connection failed, and ends")
        self._calls.fail_all()
        self._out.go_away(ErrorCodes.INTERNAL_ERROR)

    def flush(self) -> None:
        """Implements `reader.Owner`."""
        self._shared.flush()

    # Events of no single call.

    def _on_window_updated(self, event: events.WindowUpdated) -> None:
        self._out.on_windows_changed()
        self._floods.count_window_updates(len(event.stream_ids))

    def _on_settings_changed(self, event: events.RemoteSettingsChanged) -> None:
        self._driver.reading.deadline = math.inf  # the peer speaks HTTP/2
        self._out.on_windows_changed()
        self._floods.count_control_frame()

    def _on_ping(self, event: events.PingReceived) -> None:
        self._note_data_sent()
        if self._pings.on_ping(trio.current_time(), has_calls=bool(self._calls)):
            self._floods.cut_off("http2_max_ping_strikes", b"too_many_pings")

    def _on_ping_answered(self, event: events.PingAckReceived) -> None:
        if event.ping_data == RETIRING_PING:
            self._refuse_calls()
        self._floods.count_control_frame()

    def _on_ignored_frame(self, event: events.IgnoredFrame) -> None:
        self._floods.count_control_frame()

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
                        self._driver.stop()
                        return
            with trio.move_on_at(min(self._lifetime.wake_at(now), self._calls.direct.next_deadline)):
                await self._time_changed.wait()

    def note_last_end(self) -> None:
        """Implements `calls.Owner`."""
        self._driver.stop()

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
            self._driver.stop()
