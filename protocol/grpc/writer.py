"""All bytes to one peer. What is put while a write is under way, or in one burst of work, leaves in one write."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Writer:
    """`backlog` is in bytes, those of the write under way included. `on_progress` is called after each write.
    `send_timeout` is how many seconds a write may take: a peer that reads nothing for so long is as good as gone."""

    def __init__(self, transport: trio.abc.SendStream, on_progress: Callable[[], None], *, send_timeout: float) -> None:
        self.backlog = 0
        self._send_timeout = send_timeout
        self._transport = transport
        self._on_progress = on_progress
        self._output: list[bytes] = []
        self._has_output = trio.lowlevel.ParkingLot()
        self._is_finishing = False
        self._has_ended = trio.Event()

    def put(self, data: bytes) -> None:
        self._output.append(data)
        self.backlog += len(data)
        self._has_output.unpark_all()

    async def run(self) -> None:
        """Write until `finish` is called and all is written.

        Raises:
            trio.BrokenResourceError: the peer is gone.
            trio.TooSlowError: it reads nothing.
        """
        try:
            while True:
                if self._output:
                    data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
                    self._output.clear()
                    with trio.fail_after(self._send_timeout):
                        await self._transport.send_all(data)
                    self.backlog -= len(data)
                    self._on_progress()
                elif self._is_finishing:
                    return
                else:
                    await self._has_output.park()
        finally:
            self._has_ended.set()

    async def finish(self) -> None:
        """Returns when all is written, or cannot be."""
        self._is_finishing = True
        self._has_output.unpark_all()
        await self._has_ended.wait()
