"""Driver of an HTTP/2 connection: reads and writes from the SETTINGS that open it to the GOAWAY that ends it.

Flow: transport -> [driver: reader] -> the edge's handlers … output -> [driver: writer] -> transport.

Owned by an edge's connection, which runs `write` in a task of its nursery, `read` beside it, and `finish` behind that,
each once. Cancelling any of them leaves the transport as it is, for the connection's owner to close.
"""

from __future__ import annotations

import trio

from protocol.http2.connection import ServerConnection
from protocol.http2.output import FrameOutput
from protocol.http2.reader import Http2Reader


class ConnectionDriver:
    """`goodbye_seconds` is how long the peer has to take the last bytes and to close its end.

    Attributes:
        reading: the scope of `read`, for its deadline.
        begun: what has been read already, for `read` to begin with.
    """

    __slots__ = ("_goodbye_seconds", "_h2", "_out", "_reader", "begun", "reading")

    def __init__(self, h2: ServerConnection, reader: Http2Reader, out: FrameOutput, *, goodbye_seconds: float) -> None:
        self._h2 = h2
        self._reader = reader
        self._out = out
        self._goodbye_seconds = goodbye_seconds
        self.reading = trio.CancelScope()
        self.begun: bytes = b""

    def initiate(self) -> None:
        """Send our settings."""
        self._h2.initiate_connection()
        self._out.flush()

    def stop(self) -> None:
        """`read` returns."""
        self.reading.cancel()

    async def read(self) -> None:
        """Handle what the peer sends, until it goes, breaks the protocol, or `stop` is called."""
        with self.reading:
            if self.begun:
                begun, self.begun = self.begun, b""
                self._reader.take(begun)
                del begun  # else it would stay as long as the connection
                self._reader.end_burst()
            await self._reader.run()

    async def write(self) -> None:
        """Write until `finish`; `read` returns when the peer does not take it."""
        try:
            await self._out.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            self._reader.is_lost = True
            self.stop()

    async def finish(self, *, is_refusing: bool) -> None:
        """Write out what is left, and let the peer close first, so that it loses no response. At its end is a GOAWAY,
        unless one has said already that no more streams are taken."""
        if self._reader.is_lost:
            return
        with trio.move_on_after(self._goodbye_seconds):
            if not self._reader.has_failed and not is_refusing:
                self._out.go_away()
            await self._out.finish()
            await self._reader.drop_rest()
