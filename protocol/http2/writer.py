"""Writer of a connection: one task writes what several producers put, joined into few writes. What is put while a write
is under way, or in one burst of work, leaves in one write; what is so large that joining it with more gains nothing
leaves at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from protocol.messages import Buffer
from protocol.reactor.transport import Wire, rest_of
from protocol.sync.wakeup import Wakeup

# Fewer bytes than this are joined for a write; more leave from where they are.
_JOINED_SIZE = 65536


class Writer:
    """`backlog` is in bytes, those of the write under way included. `on_progress` is called after each write.
    `send_timeout` is how many seconds a peer may read nothing: it is as good as gone then."""

    __slots__ = (
        "_ended",
        "_failure",
        "_has_ended",
        "_has_output",
        "_is_deaf",
        "_is_finishing",
        "_is_writing",
        "_on_progress",
        "_output",
        "_send_timeout",
        "_wire",
        "backlog",
    )

    def __init__(self, wire: Wire, on_progress: Callable[[], None], *, send_timeout: float) -> None:
        self.backlog = 0
        self._send_timeout = send_timeout
        self._wire = wire
        self._on_progress = on_progress
        self._output: list[Buffer] = []
        self._has_output = Wakeup()
        self._is_writing = False
        self._is_deaf = False
        self._is_finishing = False
        self._failure: Exception | None = None
        self._has_ended = False
        self._ended = Wakeup()

    def put(self, data: Sequence[Buffer]) -> None:
        """Queue bytes, which must not change until they are written."""
        self._output += data
        self.backlog += sum(map(len, data))
        if self.backlog > _JOINED_SIZE and not self._is_writing:
            self._write_at_once()
        if self._output:
            self._has_output.wake()

    def put_last(self, data: Sequence[Buffer]) -> None:
        """As `put`, at the end of a burst: all queued bytes are written at once, as far as the kernel takes them."""
        self._output += data
        self.backlog += len(data[0]) if len(data) == 1 else sum(map(len, data))
        if not self._is_writing:
            if len(self._output) > 1 and self.backlog <= _JOINED_SIZE:
                self._output = [b"".join(self._output)]
            self._write_at_once()
        if self._output:
            self._has_output.wake()

    def _write_at_once(self) -> None:
        sent = self._wire.send_at_once(self._output)
        if sent:
            self.backlog -= sent
            self._output = rest_of(self._output, sent) if self.backlog else []
            self._on_progress()

    async def run(self) -> None:
        """Write until `finish` is called and all is written.

        Raises:
            trio.BrokenResourceError: the peer is gone.
            trio.TooSlowError: it reads nothing.
            Exception: what `fail` was told.
        """
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._output:
                    output, self._output = self._output, []
                    await self._write(output, self.backlog)
                    self._on_progress()
                elif self._is_finishing:
                    return
                else:
                    await self._has_output.wait()
        finally:
            self._has_ended = True
            self._on_progress = _nothing  # the owner's, which would keep itself by it
            self._ended.wake()

    async def _write(self, output: Sequence[Buffer], size: int) -> None:
        self._is_writing = True
        if len(output) > 1 and size > _JOINED_SIZE:
            is_sent = await self._wire.send_parts(output, self._send_timeout, self._note_deaf)
        else:
            data = output[0] if len(output) == 1 else b"".join(output)
            is_sent = await self._wire.send(data, self._send_timeout, self._note_deaf)
        self._is_writing = False
        if self._is_deaf:
            raise trio.TooSlowError
        if not is_sent:
            raise trio.BrokenResourceError("the peer is gone")
        self.backlog -= size

    def _note_deaf(self) -> None:
        self._is_deaf = True

    def fail(self, error: Exception) -> None:
        """Bytes were lost: nothing that follows makes sense to the peer, so `run` raises this."""
        self._failure = error
        self._has_output.wake()

    async def finish(self) -> None:
        """Returns when all is written, or cannot be."""
        self._is_finishing = True
        self._has_output.wake()
        while not self._has_ended:
            await self._ended.wait()


def _nothing() -> None:
    pass
