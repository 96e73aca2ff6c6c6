"""Output of an HTTP/2 connection: sends frames within the peer's windows, batched into few writes.

Flow: an edge -> [output] -> writer -> transport.

Owned by a connection, which runs `run` in its nursery. Senders that wait for a window or for the writer are woken when
either changes; a cancelled one leaves its stream to be reset by its owner.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import trio
from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError

from protocol.http2.connection import ServerConnection
from protocol.http2.h2_connection import HIGHEST_STREAM_ID
from protocol.http2.writer import Writer
from protocol.limits.answer_memory import AnswerMemory
from protocol.limits.request_memory import RequestMemory
from protocol.messages import Buffer
from protocol.reactor.replies import Replies
from protocol.reactor.transport import Wire, split
from protocol.sync.wakeup import WaitingTasks

# A peer is told of a window in portions of this part of it, or more.
PORTIONS = 8
# Fewer bytes of a message within a timeout are no progress, unless they are the rest of it.
PROGRESS = 65536
# No more response data than this waits for the socket; whoever has more waits instead.
MAX_BACKLOG = 1 << 20
# Replies to the peer's own frames (PING, SETTINGS, refused streams); a peer that reads none of them is not read either.
MAX_CONTROL_BACKLOG = 1 << 16
# Sent with the first of two GOAWAYs: its answer comes behind the requests that were on their way.
RETIRING_PING = b"retiring"
# How many WINDOW_UPDATE frames a new stream is worth: a peer may open windows before it gets anything.
UPDATES_PER_STREAM = 4
# And a message: two when it is read, two for each frame of it, and two for each 4 kB, as Go's client sends them.
UPDATES_PER_MESSAGE = 4
BYTES_PER_UPDATE = 2048
# A larger response gains nothing by leaving together with others.
_WRITTEN_ABOVE = 65536


def updates_for(size: int) -> int:
    """How many WINDOW_UPDATE frames a client has reason to send for a message of so many bytes."""
    return UPDATES_PER_MESSAGE + size // BYTES_PER_UPDATE


class FrameOutput:
    """Each edge adds how it answers. `count_refusal` is called with the name of each limit that refuses.

    Attributes:
        taken: bytes that nobody holds any more, and that the peer has not been told it may send again.
        is_heard: whether the peer reads what answers its own frames: else no more of it should be read.
        answers: counts the whole responses that wait for the peer.
        window_updates: how many more WINDOW_UPDATE frames the peer has reason to send.
    """

    __slots__ = (
        "_can_send",
        "_control_backlog",
        "_h2",
        "_portion",
        "_send_timeout",
        "_wire",
        "_writer",
        "_writes_soon",
        "answers",
        "count_refusal",
        "is_heard",
        "taken",
        "window_updates",
    )

    def __init__(
        self,
        connection: ServerConnection,
        wire: Wire,
        count_refusal: Callable[[str], None],
        memory: RequestMemory,
        *,
        send_timeout: float,
        connection_window: int,
    ) -> None:
        self._h2 = connection
        self._writer = Writer(wire, self._on_written, send_timeout=send_timeout)
        self._wire = wire
        self.count_refusal = count_refusal
        self.answers = AnswerMemory(memory, count_refusal)
        self._send_timeout = send_timeout
        self._can_send = WaitingTasks()  # here waits who needs the writer's progress or a window
        self._control_backlog = 0
        self._writes_soon = False
        self._portion = connection_window // PORTIONS
        self.taken = 0
        self.is_heard = True
        self.window_updates = 0

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._wire.peer

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
        """Give the frames made so far to the writer."""
        if self._h2.output:
            self._writer.put(self._h2.data_to_send())

    def write_after(self, replies: Replies) -> None:
        """Call `write` when all replies of this burst have been made."""
        if not self._writes_soon:
            self._writes_soon = True
            replies.call_last(self.write, self._writer.fail)

    def write(self) -> None:
        """As `flush`, at the end of a burst of work."""
        self._writes_soon = False
        h2 = self._h2
        if h2.output:
            output, h2.output = h2.output, []  # as `data_to_send`, without its call
            self._writer.put_last(output)

    def end_burst(self) -> None:
        """A burst of received frames was handled: return flow-control credit, and write replies to control frames."""
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

    # Of streams.

    def expect_updates_of_stream(self) -> None:
        """A stream is opened, so its client may say how much it will take."""
        self.window_updates += UPDATES_PER_STREAM

    def expect_updates(self, size: int) -> None:
        """So many bytes are sent in one message: when its client has read them, it opens its windows again."""
        self.window_updates += updates_for(size)

    def acknowledge(self, stream_id: int, size: int) -> None:
        """Allow the peer to send `size` bytes more."""
        if size:
            self._h2.acknowledge_received_data(size, stream_id)
            self.flush()

    def acknowledge_stream(self, stream_id: int, size: int) -> None:
        """Let the peer send `size` bytes more on the stream, as far as that goes; they are `taken`."""
        self._h2.give_back_to_stream(size, stream_id)

    def refuse_stream(self, stream_id: int) -> None:
        """Refuse a request of which nothing was processed: the peer may retry it elsewhere (REFUSED_STREAM)."""
        with contextlib.suppress(StreamClosedError):  # it is reset as well, in the same burst
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)

    def _write_soon(self, size: int, replies: Replies) -> None:
        """Frames with so many bytes of data have been made; they leave with those of other answers that are there."""
        if size > _WRITTEN_ABOVE or not replies.left:
            self.write()
        elif not self._writes_soon:
            self._writes_soon = True
            replies.call_last(self.write, self._writer.fail)

    async def _send_in_frames(
        self, stream_id: int, parts: Sequence[Buffer], left: int, *, end_stream: bool = False
    ) -> None:
        """`left` bytes of data, as the peer's windows open. A stream whose window stays shut is reset.

        Raises:
            StreamClosedError: it is reset.
        """
        connection = self._h2
        deadline, progress = trio.current_time() + self._send_timeout, 0
        while left:
            size = min(left, connection.sendable(stream_id))
            if size > 0 and self._writer.backlog < MAX_BACKLOG:
                first, parts = split(parts, size)
                left -= size
                connection.send_data(stream_id, first, end_stream=end_stream and not left)
                self._note_data_sent()
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
                    raise StreamClosedError(stream_id)

    def _note_data_sent(self) -> None:
        """A DATA frame was made."""

    # Of the connection.

    def ping(self, payload: bytes) -> None:
        self._h2.ping(payload)
        self.flush()

    def announce_end(self) -> None:
        """Ask the peer to open no more streams; those that it has opened meanwhile are still served."""
        self._h2.close_connection(last_stream_id=HIGHEST_STREAM_ID)
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
