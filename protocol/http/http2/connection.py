"""An HTTP/2 connection of the REST edge: reader, writer and request streams around the sans-IO core of
`protocol.http2`.

Flow: transport -> `http2.reader` -> [connection] -> streams … output -> transport

Owned by the edge's `connections`, which runs `run` in a task; cancelling it ends the connection and its requests at
once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio
from h2.errors import ErrorCodes

from protocol.failures import CallbackFailures
from protocol.http.date import DateHeader
from protocol.http.direct_infer import DirectInference
from protocol.http.exchange import App
from protocol.http.http2.goodbye import Goodbye, Step
from protocol.http.http2.head import ResponseBlocks
from protocol.http.http2.output import HttpOutput
from protocol.http.http2.streams import CONNECTION_WINDOW, STREAM_WINDOW, Http2Streams, no_request
from protocol.http.settings import GOODBYE_SECONDS, ConnectionLimits, OnLimit
from protocol.http2 import events
from protocol.http2.connection import ServerConnection
from protocol.http2.driver import ConnectionDriver
from protocol.http2.flood_limits import FloodLimits
from protocol.http2.frames import GOAWAY
from protocol.http2.h2_connection import HIGHEST_STREAM_ID
from protocol.http2.output import RETIRING_PING
from protocol.http2.reader import Http2Reader
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.transport import Wire


class Http2Connection:
    """`on_limit` is called with the name of each limit that refuses something. Without `direct` every request takes a
    task."""

    __slots__ = (
        "_deadline",
        "_driver",
        "_failures",
        "_floods",
        "_flush",
        "_goodbye",
        "_h2",
        "_limits",
        "_most_served",
        "_now",
        "_on_limit",
        "_out",
        "_seen",
        "_served",
        "_streams",
    )

    def __init__(
        self,
        app: App,
        wire: Wire,
        limits: ConnectionLimits,
        on_limit: OnLimit,
        date: DateHeader,
        memory: RequestMemory,
        *,
        direct: DirectInference | None = None,
        failures: CallbackFailures | None = None,
    ) -> None:
        self._failures = failures or CallbackFailures()
        self._limits = limits
        self._on_limit = on_limit
        self._now = trio.lowlevel.current_clock().current_time
        blocks = ResponseBlocks(date)
        self._h2 = ServerConnection(
            max_concurrent_streams=limits.max_concurrent_streams,
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            max_header_size=limits.max_header_size,
            interpret=lambda headers: self._streams.read_head(headers),
            refuse=no_request,
            response_headers=blocks.encoder,
        )
        self._out = HttpOutput(
            self._h2,
            blocks,
            wire,
            on_limit,
            memory,
            send_timeout=limits.send_timeout,
            connection_window=CONNECTION_WINDOW,
        )
        self._floods = FloodLimits(
            self._out, max_control_frames=limits.max_control_frames, max_stream_resets=limits.max_stream_resets
        )
        self._streams = Http2Streams(app, direct, limits, self._out, self._floods, self, on_limit, memory)
        self._flush = None if direct is None else direct.flush
        self._goodbye = Goodbye()
        self._served = 0
        self._most_served = limits.max_requests_per_connection or math.inf
        self._seen = -1  # how many requests had been taken when the connection was last looked at
        self._deadline = math.inf  # of the wait for a request
        on_event: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._streams.on_request,
            events.DataReceived: self._streams.on_data,
            events.TrailersReceived: self._streams.on_trailers,
            events.StreamReset: self._streams.on_stream_reset,
            events.WindowUpdated: self._on_window_updated,
            events.RemoteSettingsChanged: self._on_settings_changed,
            events.PingReceived: self._on_control_frame,
            events.PingAckReceived: self._on_ping_answered,
            events.IgnoredFrame: self._on_ignored_frame,
        }
        poller = None if direct is None else direct.poller
        reader = Http2Reader(wire, poller, self._out, self._h2, self._floods, self, on_event)
        self._driver = ConnectionDriver(self._h2, reader, self._out, goodbye_seconds=GOODBYE_SECONDS)

    @property
    def stream_count(self) -> int:
        """The requests under way."""
        return len(self._streams)

    def begin_with(self, begun: bytes) -> None:
        """Before `run`: so much has come already."""
        self._driver.begun = begun

    async def run(self) -> None:
        """Serve until the client goes, breaks the protocol, or `drain` was called and no request is left. Cancelling
        ends it at once, with what runs."""
        self._driver.initiate()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._driver.write)
                self._streams.begin(nursery)
                await self._driver.read()
                self._streams.terminate()
                await self._driver.finish(is_refusing=self._streams.refuses)
                nursery.cancel_scope.cancel()
        finally:
            self._streams.terminate()

    async def drain(self) -> None:
        """Take no more requests than the client sends before it has seen the GOAWAY, answer them, and let `run`
        return."""
        self._retire()

    def _retire(self) -> None:
        self._goodbye.begin(self._now())
        self._out.before_end = self._note_response

    def check_time(self, now: float) -> None:
        """Called every now and then."""
        is_new = self._seen != self._served
        self._seen = self._served
        if self._streams:
            self._streams.hand_over_slow()
        if self._goodbye.has_begun:
            self._follow(self._goodbye.due(now))
        if self._streams:
            self._deadline = math.inf
        elif is_new or self._deadline == math.inf:
            self._deadline = now + self._limits.idle_timeout
        elif now >= self._deadline:
            self._on_limit("idle_timeout")
            self._driver.stop()

    # What comes.

    def room(self, stream_id: int, size: int) -> memoryview | None:
        """Implements `reader.Owner`."""
        return self._streams.room(stream_id, size)

    def fail_stream(self, stream_id: int, error: Exception) -> None:
        """Implements `reader.Owner`. The other requests are answered, but the client is asked to send its next ones on
        another connection: nobody knows what else the defect has left undone."""
        self._failures.note("connection", error, "an HTTP/2 request failed, and its connection ends behind the others")
        self._streams.fail(stream_id)
        self._retire()

    def fail(self, error: Exception) -> None:
        """Implements `reader.Owner`."""
        self._failures.note("poller", error, "an HTTP/2 connection failed, and ends")
        self._streams.fail_all()
        self._out.go_away(ErrorCodes.INTERNAL_ERROR)

    def flush(self) -> None:
        """Implements `reader.Owner`."""
        if self._flush is not None:
            self._flush()

    def _on_window_updated(self, event: events.WindowUpdated) -> None:
        self._out.on_windows_changed()
        self._floods.count_window_updates(len(event.stream_ids))

    def _on_settings_changed(self, event: events.RemoteSettingsChanged) -> None:
        self._out.on_windows_changed()
        self._floods.count_control_frame()

    def _on_ping_answered(self, event: events.PingAckReceived) -> None:
        if event.ping_data == RETIRING_PING:
            self._follow(self._goodbye.on_answered())
        self._floods.count_control_frame()

    def _on_control_frame(self, event: events.Event) -> None:
        self._floods.count_control_frame()

    def _on_ignored_frame(self, event: events.IgnoredFrame) -> None:
        if event.kind == GOAWAY:  # it opens no more streams, and waits for its responses
            self._streams.refuses = True
            self._end_if_done()
        self._floods.count_control_frame()

    # The end.

    def note_request(self) -> None:
        """Implements `http2_streams.Owner`."""
        self._served += 1
        if self._served == self._most_served:
            self._on_limit("max_requests_per_connection")
            self._goodbye.end()
            self._streams.refuses = True
            self._out.go_away()

    def note_last_end(self) -> None:
        """Implements `http2_streams.Owner`."""
        self._end_if_done()

    def _note_response(self, stream_id: int) -> None:
        """In one write with the response, so that its client reads both before it sends the next request."""
        if self._streams.is_last(stream_id) and self._goodbye.on_idle(self._now()) is Step.ANNOUNCE:
            self._announce()

    def _follow(self, step: Step | None) -> None:
        match step:
            case Step.ANNOUNCE:
                self._announce()
                self._out.write()
            case Step.REFUSE:
                self._streams.refuses = True
                self._out.go_away()
                self._out.write()
        self._end_if_done()

    def _announce(self) -> None:
        # The ping goes first: for some clients nothing may come behind a GOAWAY.
        self._h2.ping(RETIRING_PING)
        self._h2.close_connection(last_stream_id=HIGHEST_STREAM_ID)

    def _end_if_done(self) -> None:
        if self._streams.refuses and not self._streams:
            self._driver.stop()
