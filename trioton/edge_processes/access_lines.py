"""The access log of an edge process: its lines go to the core's process, which writes them among its own."""

from __future__ import annotations

from collections import deque

from protocol.sync.wakeup import Wakeup
from trioton.edge_processes.channel import MOST_BYTES, Channel, ChannelFull
from trioton.edge_processes.messages import AccessLines, ToCore, ToEdge

# Of lines that wait for the core; others are counted, and lost.
MOST_WAITING = 4 << 20
# Of those in one message, unless a single one is longer.
_MOST_AT_ONCE = MOST_BYTES // 2
# Messages that wait for the core.
_MOST_QUEUED = 8


class LineSender:
    """`put` takes lines as `AccessLog` writes them; `run` sends what has come within one turn of the loop together."""

    def __init__(self, channel: Channel[ToCore, ToEdge]) -> None:
        self._channel = channel
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._lost = 0
        self._has_lines = Wakeup()

    def put(self, line: bytes) -> None:
        """Never waits."""
        if self._waiting + len(line) > MOST_WAITING:
            self._lost += 1
            return
        if not self._lines:
            self._has_lines.wake()
        self._lines.append(line)
        self._waiting += len(line)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while self._lines:
                await self._channel.until_fewer(_MOST_QUEUED)
                self._send_some()
            await self._has_lines.wait()

    async def flush(self) -> None:
        """Beside the channel's `write`: all that was put is sent. Waits for the core."""
        while self._lines:
            self._send_some()
        await self._channel.until_fewer(1)

    def _send_some(self) -> None:
        lines = self._lines
        parts: list[bytes] = []
        size = 0
        if not lines:
            return
        while lines and (not parts or size + len(lines[0]) <= _MOST_AT_ONCE):
            parts.append(lines.popleft())
            size += len(parts[-1])
        self._waiting -= size
        try:
            self._channel.send(AccessLines(b"".join(parts), self._lost))
            self._lost = 0
        except ChannelFull:
            self._lost += len(parts)
