"""Child processes that die with this one: how they are started, waited for and ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

import trio

from trioton.bound import bound_command

_LONGEST_LINE = 1 << 16
# For output that is still to be read when its process has ended.
_LAST_WORDS_SECONDS = 1.0


class Child:
    """A process that runs a command. Whoever has started it runs `run` in a task, which hands its output on, line by
    line.

    It is started by the main thread, and waited for by no thread: the kernel sends its death signal when the thread
    ends that has started it.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, keeps: Sequence[int] = ()
    ) -> None:
        """`keeps` are file descriptors that it inherits. Blocks for some milliseconds. Raises OSError."""
        self._process = subprocess.Popen(
            bound_command(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=None if environment is None else dict(environment),
            pass_fds=tuple(keeps),
            start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which then ends its children in order
        )
        self._ended = trio.Event()
        self._silent = trio.Event()
        self.pid = self._process.pid

    async def run(self, line: Callable[[str], None]) -> None:
        """Until it has ended, whoever of its own children still holds its output. Cancelled: it is killed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_output_on, line)
                await self._until_ended()
                with trio.move_on_after(_LAST_WORDS_SECONDS):
                    await self._silent.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            self._ended.set()

    async def _until_ended(self) -> None:
        fd = os.pidfd_open(self.pid)
        try:
            await trio.lowlevel.wait_readable(fd)
        finally:
            os.close(fd)
        self._process.wait()

    async def _pass_output_on(self, line: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as stream:
            self._process.stdout.close()
            async for data in stream:
                *lines, rest = (rest + data).split(b"\n")
                for each in lines:
                    line(each.decode(errors="replace"))
                if len(rest) > _LONGEST_LINE:
                    line(rest.decode(errors="replace"))
                    rest = b""
        if rest:
            line(rest.decode(errors="replace"))
        self._silent.set()

    async def wait(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        await self._ended.wait()
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Nothing, where it has ended."""
        self._process.send_signal(number)


def end_text(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
