"""A forked process that is a grandchild of the server: watched by its pidfd, killed, and reaped by its parent.

Flow: `host` or `fork_server` → [forked process].
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import trio

from backends.python.workers.process import exit_text, resident_bytes

# How long a killed worker may take to be gone.
_REAP_SECONDS = 5.0


class ForkedProcess:
    """Leader of its own process group. `descriptor` is its pidfd. Until it is reaped, its number is taken."""

    def __init__(self, pid: int, descriptor: int, reap: Callable[[int], Awaitable[None]]) -> None:
        self.pid = pid
        self.is_closed = False
        self._descriptor = descriptor
        self._reap = reap
        self._found: str | None = None
        self._is_closing = False

    def resident_bytes(self) -> int | None:
        return resident_bytes(self.pid)

    def exit_text(self) -> str | None:
        if self._found is None and not self.is_closed:
            self._found = _end_of(self.pid)
        return self._found

    async def wait_exit(self) -> None:
        if self.is_closed or self.exit_text() is not None:
            await trio.lowlevel.checkpoint()
            return
        # Each wait needs a pidfd of its own, and no copy: epoll goes on reporting a closed copy's number while its file
        # is open, and wakes whoever waits for what has that number then.
        while not self.is_closed and self.exit_text() is None:
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:  # reaped in this moment, by whoever adopts the children of its dead parent
                continue
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)

    def kill(self) -> None:
        if not self.is_closed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill what is left of it and its group, and have its parent reap it. Shielded and bounded. Called
        again, also while the first call is under way, it does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self.kill()
        with trio.move_on_after(_REAP_SECONDS):
            await self.wait_exit()
            self.kill()  # what it started while it was being killed
            await self._reap(self.pid)
        self.is_closed = True
        os.close(self._descriptor)


def _end_of(pid: int) -> str | None:
    """How a process that is not our child has ended, while its parent has not reaped it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    if fields[0] not in "ZX":
        return None
    return exit_text(os.waitstatus_to_exitcode(int(fields[-1])))
