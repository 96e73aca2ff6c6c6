"""What leaves on one connection: frames, made by `http2` within the peer's windows, in as few writes as may be.

Flow: stream, connection -> [outgoing] -> writer -> socket.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import trio
from grpclib.exceptions import StreamTerminatedError
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError

from protocol.answers import Answers
from protocol.grpc.framing import PREFIX_LENGTH
from protocol.grpc.headers import OK_TRAILERS, RESPONSE_HEADERS, Header
from protocol.grpc.output import PORTIONS
from protocol.grpc.settings import PROGRESS
from protocol.grpc.writer import Writer
from protocol.http2.connection import ServerConnection
from protocol.limits import LimitCounter
from protocol.messages import Buffer
from protocol.wakeup import WaitingTasks
from protocol.wire import Wire, split

# No more response data than this waits for the socket; calls wait instead.
MAX_BACKLOG = 1 << 20
# Answers to the peer's own frames (PING, SETTINGS, refused streams); a peer that reads none of them is not read either.
MAX_CONTROL_BACKLOG = 1 << 16

# A larger response gains nothing by leaving together with others.
_WRITTEN_ABOVE = 65536

_HIGHEST_STREAM_ID = 2**31 - 1
# How many WINDOW_UPDATE frames a message is worth: two when it is read, two for each frame of it.
_UPDATES_PER_MESSAGE = 4
_BYTES_PER_UPDATE = 4096


class Outgoing:
    """Implements `output.Output`, and sends what the connection itself has to say.

    Attributes:
        taken: bytes that nobody holds any more, and that the peer has not been told it may send again.
        has_sent_data: data or headers have left since somebody last looked.
        is_heard: whether the peer reads what answers its own frames: else no more of it should be read.
        window_updates: how many more WINDOW_UPDATE frames the peer has reason to send.
    """

    def __init__(
        self,
        connection: ServerConnection,
        wire: Wire,
        counts: LimitCounter,
        *,
        send_timeout: float,
        connection_window: int,
    ) -> None:
        self._h2 = connection
        self._writer = Writer(wire, self._on_written, send_timeout=send_timeout)
        self._counts = counts
        self._send_timeout = send_timeout
        self._can_send = WaitingTasks()  # here waits who needs the writer's progress or a window
        self._control_backlog = 0
        self._writes_soon = False
        self._portion = connection_window // PORTIONS
        self.taken = 0
        self.is_heard = True
        self.has_sent_data = False
        self.window_updates = 0

    async def run(self) -> None:
        """Write until `finish`.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the peer is gone.
            trio.TooSlowError: it reads nothing.
        """
        try:
            await self._writer.run()
        except trio.TooSlowError:
            self.count_refusal("send_timeout")
            raise

    async def finish(self) -> None:
        """Returns when all is written, or cannot be."""
        self.flush()
        await self._writer.finish()

    def flush(self) -> None:
        """Hand the frames made so far to the writer."""
        if self._h2.output:
            self._writer.put(self._h2.data_to_send())

    def write_after(self, answers: Answers) -> None:
        """`write`, when all answers that are there have been delivered."""
        if not self._writes_soon:
            self._writes_soon = True
            answers.call_last(self.write)

    def write(self) -> None:
        """As `flush`, at the end of a burst of work."""
        self._writes_soon = False
        if self._h2.output:
            self._writer.put_last(self._h2.data_to_send())

    def end_burst(self) -> None:
        """All that came at one time has been taken: give windows back, and write what answers the peer's own frames."""
        if self.taken > self._portion:  # what is not told is so little that the peer has most of the window
            taken, self.taken = self.taken, 0
            self._h2.give_back(taken)
        if not self._h2.output:
            return
        before = self._writer.backlog
        self.write()
        self._control_backlog = max(0, self._control_backlog + self._writer.backlog - before)
        self.is_heard = self._control_backlog <= MAX_CONTROL_BACKLOG

    async def wait_heard(self) -> None:
        while not self.is_heard:
            await self._can_send.wait()

    def on_windows_changed(self) -> None:
        if self._can_send.waiting:
            self._can_send.wake_all()

    def count_refusal(self, limit: str) -> None:
        self._counts.count("grpc", limit)

    # Of streams.

    def acknowledge(self, stream_id: int, size: int) -> None:
        if size:
            self._h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def acknowledge_stream(self, stream_id: int, size: int) -> None:
        self._h2.give_back_to_stream(size, stream_id)

    def send_headers(self, stream_id: int, headers: Sequence[Header]) -> None:
        try:
            self._h2.send_headers(stream_id, headers)
        except ProtocolError as error:
            raise StreamTerminatedError(str(error)) from None
        self.has_sent_data = True

    async def send_data(self, stream_id: int, parts: Sequence[Buffer]) -> None:
        """No checkpoint where nothing has to be waited for. A stream whose window stays shut is reset."""
        self.has_sent_data = True
        size = sum(map(len, parts))
        self.window_updates += _UPDATES_PER_MESSAGE + size // _BYTES_PER_UPDATE
        try:
            if size <= self._h2.sendable(stream_id) and self._writer.backlog < MAX_BACKLOG:
                self._h2.send_data(stream_id, parts)
            else:
                await self._send_in_frames(stream_id, parts, size)
        except ProtocolError as error:
            raise StreamTerminatedError(str(error)) from None

    def send_at_once(
        self, stream_id: int, headers: Sequence[Header], parts: Sequence[Buffer], answers: Answers
    ) -> bool:
        """Send data, behind headers if there are any; it leaves when all answers that are there have been delivered.
        False, and nothing is done, where that has to wait for the client, or it has gone."""
        size = sum(map(len, parts))
        try:
            if self._writer.backlog >= MAX_BACKLOG or not self._h2.send_data_at_once(stream_id, headers, parts, size):
                return False
        except StreamClosedError:  # it is reset
            return False
        self._note_answered(size, answers)
        return True

    async def _send_in_frames(self, stream_id: int, parts: Sequence[Buffer], left: int) -> None:
        connection = self._h2
        deadline, progress = trio.current_time() + self._send_timeout, 0
        while left:
            size = min(left, connection.sendable(stream_id))
            if size > 0 and self._writer.backlog < MAX_BACKLOG:
                first, parts = split(parts, size)
                connection.send_data(stream_id, first)
                left -= size
                if left:
                    self.flush()
                progress += size
                if progress >= PROGRESS:
                    deadline, progress = trio.current_time() + self._send_timeout, 0
            else:
                self.flush()
                with trio.move_on_at(deadline) as waiting:
                    await self._can_send.wait()
                if waiting.cancelled_caught:
                    self.count_refusal("send_timeout")
                    connection.reset_stream(stream_id, ErrorCodes.CANCEL)
                    raise StreamTerminatedError("the client takes no response data")

    def send_response(self, stream_id: int, message: Sequence[Buffer], answers: Answers) -> bool:
        """Send all of a good response, of one message, to a call that its client has ended; it leaves when all answers
        that are there have been delivered. False, and nothing is done, where that has to wait for the client."""
        size = sum(map(len, message))
        parts = (b"\0" + size.to_bytes(4, "big"), *message)
        size += PREFIX_LENGTH
        try:
            if self._writer.backlog >= MAX_BACKLOG or not self._h2.send_response(
                stream_id, RESPONSE_HEADERS, parts, size, OK_TRAILERS
            ):
                return False
        except StreamClosedError:  # it is reset
            return True
        self._note_answered(size, answers)
        return True

    def _note_answered(self, size: int, answers: Answers) -> None:
        self.has_sent_data = True
        self.window_updates += _UPDATES_PER_MESSAGE + size // _BYTES_PER_UPDATE
        if size > _WRITTEN_ABOVE or not answers.left:
            self.write()
        elif not self._writes_soon:
            self._writes_soon = True
            answers.call_last(self.write)

    def end_stream(self, stream_id: int, headers: Sequence[Header], *, peer_has_ended: bool) -> None:
        """Send the last headers; if the peer still sends, tell it that nobody reads on."""
        self.has_sent_data = True
        try:
            self._h2.send_headers(stream_id, headers, end_stream=True)
            if not peer_has_ended:
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        except StreamClosedError:  # it is reset
            pass

    def refuse_stream(self, stream_id: int) -> None:
        """Nothing of the call was done: the peer may try it again, elsewhere."""
        with contextlib.suppress(StreamClosedError):  # it is reset as well, in the same burst
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)

    # Of the connection.

    def ping(self, payload: bytes) -> None:
        self._h2.ping(payload)
        self.flush()

    def announce_end(self) -> None:
        """Ask the peer to open no more streams; those that it has opened meanwhile are still served."""
        self._h2.close_connection(last_stream_id=_HIGHEST_STREAM_ID)
        self.flush()

    def go_away(self, error: ErrorCodes = ErrorCodes.NO_ERROR, reason: bytes = b"") -> None:
        """The last stream is the last one that has come."""
        self._h2.close_connection(error, additional_data=reason)
        self.flush()

    def _on_written(self) -> None:
        self._control_backlog = 0
        self.is_heard = True
        if self._can_send.waiting:
            self._can_send.wake_all()
