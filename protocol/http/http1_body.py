"""The body of one HTTP/1 request on its way in: the connection's reader fills it, the application waits for it.

A body that came with its head is there from the start. All others are read only once they are wanted, so that the
application can refuse a request by its head, and counted as they come.
"""

from __future__ import annotations

import numpy as np
import trio

from protocol.errors import ServerError
from protocol.http.body import MIN_BODY_RATE, BodyLimit, body_timeout
from protocol.messages import Buffer
from protocol.request_memory import RequestShare


class IncomingBody:
    """`size` is what the head says, 0 if it says nothing. Cancelling `read` leaves the body where it is."""

    __slots__ = (
        "_changed",
        "_error",
        "_is_complete",
        "_limit",
        "_progress",
        "_received",
        "_share",
        "_wanted",
        "data",
        "size",
    )

    def __init__(self, size: int, data: Buffer = b"", *, is_complete: bool) -> None:
        self.size = size
        self.data = data
        self._is_complete = is_complete
        self._error: ServerError | None = None
        self._received = 0
        self._progress = 0.0
        self._wanted = trio.Event() if not is_complete else None
        self._changed = trio.Event() if not is_complete else None
        self._limit: BodyLimit | None = None
        self._share: RequestShare | None = None

    # The application's side.

    @property
    def is_wanted(self) -> bool:
        return self._wanted is not None and self._wanted.is_set()

    async def read(self, limit: BodyLimit, share: RequestShare, pause_seconds: float) -> Buffer:
        """The whole body.

        Raises:
            BodyTimeout: it pauses for `pause_seconds`, or comes more slowly than `MIN_BODY_RATE`.
            ServerError: over the limit, no memory left for it, or framed as it must not be.
        """
        if self._is_complete:
            share.take(len(self.data))
            limit.check(len(self.data))
            return self.data
        assert self._wanted is not None
        assert self._changed is not None
        self._limit, self._share = limit, share
        self._progress = started = trio.current_time()
        self._wanted.set()
        while not (self._is_complete or self._error):
            deadline = pause_seconds + min(self._progress, started + self._received / MIN_BODY_RATE)
            if trio.current_time() >= deadline:
                raise body_timeout(self._received, trio.current_time() - started)
            with trio.move_on_at(deadline):
                await self._changed.wait()
        if self._error:
            raise self._error
        return self.data

    # The reader's side.

    async def wait_wanted(self) -> None:
        assert self._wanted is not None
        await self._wanted.wait()

    def buffer(self) -> memoryview:
        """Memory for the whole of a body whose size is known; it is not cleared, and takes none until it is filled."""
        return np.empty(self.size, np.uint8).data

    def count(self, size: int) -> bool:
        """Bytes of content have come. Returns whether more may come; the application is told if not."""
        assert self._share is not None
        assert self._limit is not None
        self._progress = trio.current_time()
        try:
            self._share.take(size)
            self._received += size
            self._limit.check(self._received)
        except ServerError as error:
            self.fail(error)
            return False
        return True

    def complete(self, data: Buffer) -> None:
        self.data = data
        self._is_complete = True
        self._tell()

    def fail(self, error: ServerError) -> None:
        """What comes is no body, or too much of one."""
        self._error = error
        self._tell()

    def _tell(self) -> None:
        if self._changed is not None:
            self._changed.set()
