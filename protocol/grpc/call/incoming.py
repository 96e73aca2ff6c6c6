"""Incoming messages of one call: assembled, counted against the memory limits, and credited to flow control.

calls -> [incoming] -> stream, direct_infer
"""

from __future__ import annotations

import math

import trio

from protocol.errors import PayloadTooLarge, ServerError
from protocol.grpc.call.compression import decompress
from protocol.grpc.call.framing import PREFIX_LENGTH, Frame, MessageDeframer
from protocol.grpc.call.output import Output
from protocol.grpc.call.receiving import CALL_MEMORY, MESSAGE_MEMORY, ReceiveMemory
from protocol.grpc.call.request_head import RequestHead
from protocol.grpc.settings import ConnectionLimits
from protocol.http2.output import PORTIONS, PROGRESS
from protocol.messages import Buffer

# Inflating more than so many compressed bytes would hold up every other call.
_INFLATE_IN_THREAD_ABOVE = 4096


def deadline_of(head: RequestHead) -> float:
    """The deadline of a call that begins now, in seconds of Trio's clock."""
    return math.inf if head.timeout is None else trio.current_time() + head.timeout


class Incoming:
    """The request messages of one call. `close` releases what is still held.

    Attributes:
        id: the HTTP/2 stream's.
        head: what the call's headers say.
        deadline: by the client, in seconds of Trio's clock.
        deframer: what has come of messages, and has not been taken.
        has_ended: the client has sent all that it will send.
        refusal: why all that comes is dropped.
        held: bytes that are counted for the call.
        unacknowledged: bytes, with padding, that the client may not send again yet.
        progress_by: when the message that is awaited must have made progress; 0 while none is.
    """

    __slots__ = (
        *("_limits", "_memory", "_message_held", "_output", "_portion", "_progress_from", "_untold"),
        *("deadline", "deframer", "has_ended", "head", "held", "id", "progress_by", "refusal", "unacknowledged"),
    )

    def __init__(
        self, output: Output, stream_id: int, head: RequestHead, limits: ConnectionLimits, memory: ReceiveMemory
    ) -> None:
        self.id = stream_id
        self.head = head
        self.held = CALL_MEMORY
        self.deadline = math.inf if head.timeout is None else deadline_of(head)
        self.has_ended = False
        self.refusal: ServerError | None = None
        self.unacknowledged = 0
        self.progress_by = 0.0
        self._progress_from = 0
        self._output = output
        self._limits = limits
        self._memory = memory
        self._untold = 0  # bytes that the client may send again as far as the connection goes
        self._portion = limits.stream_window // PORTIONS
        self._message_held = 0  # of `held`, the bytes of the message that was taken last
        if not memory.take(CALL_MEMORY):
            self.refusal = self._refused_memory(CALL_MEMORY)
        self.deframer = MessageDeframer(limits.max_message_size, memory.rooms)

    def room(self, size: int) -> memoryview | None:
        """Where the next bytes belong, at most `size`, if that is known. They are then to be fed."""
        return None if self.refusal is not None else self.deframer.room(size)

    def feed(self, data: Buffer, flow_controlled_size: int, *, has_ended: bool) -> bool:
        """False where it was dropped, since the rest is refused already."""
        self.has_ended = has_ended
        self.unacknowledged += flow_controlled_size
        if self.refusal is not None:
            self.acknowledge()
            return False
        size = len(data)
        self.held += size
        self.deframer.feed(data)
        if not self._memory.take(size):
            self._refuse()
        return True

    # The messages.

    @property
    def is_ready(self) -> bool:
        """Whether the next message is complete, or invalid."""
        return self.refusal is not None or self.deframer.is_ready

    @property
    def is_decided(self) -> bool:
        """Whether more of the request would not make it a single good message."""
        return self.refusal is not None or self.deframer.has_more

    def whole(self) -> memoryview | None:
        """The message of a request that has come whole, and is nothing but that message, not compressed. It stays."""
        return self.deframer.whole() if self.refusal is None else None

    def next_frame(self) -> Frame | None:
        """The next message, or None where more bytes are needed.

        Raises:
            InvalidArgument, PayloadTooLarge, Overloaded: it is refused.
        """
        if self.refusal is not None:
            raise self.refusal
        try:
            found = self.deframer.next_frame()
        except PayloadTooLarge:
            self._output.count_refusal("max_message_size")
            raise
        if found is not None:
            # What lies behind it waits for the next call, and holds the client back.
            self.acknowledge(keep=self.deframer.buffered)
            self.progress_by = 0.0
            self._message_held = PREFIX_LENGTH + len(found.payload)
            self._count_message()
        return found

    def note_progress(self) -> None:
        """A message is awaited, and as much of it as there is may have come since the last time."""
        buffered = self.deframer.buffered
        if not self.progress_by or buffered - self._progress_from >= PROGRESS:
            self.progress_by = trio.current_time() + self._limits.receive_timeout
            self._progress_from = buffered

    async def decompress(self, payload: memoryview) -> memoryview:
        """The content of the message that was taken last. It counts from now on, not the compressed message.

        Raises:
            InvalidArgument: it is broken.
            PayloadTooLarge, Overloaded: there is too much of it.
        """
        if len(payload) <= _INFLATE_IN_THREAD_ABOVE:
            limit = self._inflated_limit()
            return self._held_message(self._inflated(payload, limit), limit)
        async with self._memory.inflating:
            limit = self._inflated_limit()
            # Abandoned with its call; the thread counts until it ends.
            inflated = await trio.to_thread.run_sync(
                self._inflated, payload, limit, limiter=self._memory.threads, abandon_on_cancel=True
            )
            return self._held_message(inflated, limit)

    def _inflated_limit(self) -> int:
        return min(self._limits.max_message_size, self._memory.left)

    def _inflated(self, payload: memoryview, limit: int) -> memoryview | PayloadTooLarge:
        try:
            return decompress(payload, self.head.encoding, limit)
        except PayloadTooLarge as error:
            return error

    def _held_message(self, inflated: memoryview | PayloadTooLarge, limit: int) -> memoryview:
        self.release(self.take_message_memory())
        if not isinstance(inflated, PayloadTooLarge):
            self._message_held = len(inflated)
            self.held += self._message_held
            self._memory.take(self._message_held)
            self._count_message()
            return inflated
        if limit < self._limits.max_message_size:
            raise self._refused_memory(self.held + limit)
        self._output.count_refusal("max_message_size")
        raise inflated

    # What they hold.

    @property
    def message_size(self) -> int:
        """The bytes that have come of the messages."""
        return self.held - CALL_MEMORY

    def _count_message(self) -> None:
        """What is there for the message that was taken last. Raises Overloaded."""
        self.held += MESSAGE_MEMORY
        self._message_held += MESSAGE_MEMORY
        if not self._memory.take(MESSAGE_MEMORY):
            self._refuse()
            assert self.refusal is not None
            raise self.refusal

    def _refuse(self) -> None:
        """There is no memory for what has come, nor for more."""
        self.refusal = self._refused_memory(self.held)
        self.release(self.deframer.buffered)
        self.deframer = MessageDeframer(self._limits.max_message_size, self._memory.rooms)

    def take_message_memory(self) -> int:
        """The bytes that the last message counts for. The caller has to `release` them."""
        size, self._message_held = self._message_held, 0
        return size

    def release_message(self) -> None:
        """The message that was taken last is not needed any more."""
        if self._message_held:
            self.release(self.take_message_memory())

    def release(self, size: int) -> None:
        self.held -= size
        self._memory.give(size)

    def acknowledge(self, *, keep: int = 0) -> None:
        """Allow the client to send as much more as has arrived, but for `keep` bytes (WINDOW_UPDATE)."""
        size = self.unacknowledged - keep
        if size > 0:
            self.unacknowledged = keep
            self._output.acknowledge(self.id, size)

    def acknowledge_in_burst(self) -> None:
        """As `acknowledge`, in larger portions; only while the events of a read are handled."""
        self._output.taken += self.unacknowledged
        self._untold += self.unacknowledged
        self.unacknowledged = 0
        if self._untold > self._portion:
            self._output.acknowledge_stream(self.id, self._untold)
            self._untold = 0

    def let_go(self) -> None:
        """The message was taken, and is counted, by a successor of this object, within a burst."""
        self.held = 0
        self._output.taken += self.unacknowledged  # no more comes on its stream

    def close(self) -> None:
        """The peer may send as much to other calls."""
        self.release(self.held)
        self.acknowledge()

    def _refused_memory(self, size: int) -> ServerError:
        limit, error = self._memory.refusal(size)
        self._output.count_refusal(limit)
        return error
