"""All bytes to one peer. What is put while a write is under way, or in one burst of work, leaves in one write."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import trio

from protocol.messages import Buffer

# Fewer bytes than this are joined for a write; more leave from where they are, if the transport can do that.
_JOINED_SIZE = 65536
# Of one call of sendmsg; systems allow 1024.
_MOST_BUFFERS = 512


class Writer:
    """`backlog` is in bytes, those of the write under way included. `on_progress` is called after each write.
    `send_timeout` is how many seconds a write may take: a peer that reads nothing for so long is as good as gone."""

    def __init__(self, transport: trio.abc.SendStream, on_progress: Callable[[], None], *, send_timeout: float) -> None:
        self.backlog = 0
        self._send_timeout = send_timeout
        self._transport = transport
        self._on_progress = on_progress
        self._output: list[Buffer] = []
        self._has_output = trio.lowlevel.ParkingLot()
        self._is_finishing = False
        self._has_ended = trio.Event()

    def put(self, data: Sequence[Buffer]) -> None:
        """Not to be changed until it is written."""
        self._output += data
        self.backlog += sum(map(len, data))
        if self._has_output:
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
                    output, self._output = self._output, []
                    size = self.backlog
                    with trio.fail_after(self._send_timeout):
                        await _send(self._transport, output, size)
                    self.backlog -= size
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


async def _send(transport: trio.abc.SendStream, output: Sequence[Buffer], size: int) -> None:
    if len(output) > 1 and size > _JOINED_SIZE and isinstance(transport, trio.SocketStream):
        await _send_buffers(transport.socket, output)
    else:
        await transport.send_all(output[0] if len(output) == 1 else b"".join(output))


async def _send_buffers(socket: trio.socket.SocketType, output: Sequence[Buffer]) -> None:
    """Raises what `trio.SocketStream.send_all` does."""
    views = [memoryview(buffer) for buffer in output]
    done = 0
    try:
        while done < len(views):
            sent = await socket.sendmsg(views[done : done + _MOST_BUFFERS])
            while done < len(views) and sent >= len(views[done]):
                sent -= len(views[done])
                done += 1
            if sent:
                views[done] = views[done][sent:]
    except OSError as error:
        if error.errno == errno.EBADF:
            raise trio.ClosedResourceError("this socket was already closed") from None
        raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
