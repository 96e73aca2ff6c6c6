"""Host process: one worker process that several instances of a model share, as threads of it or as forks of it.

Flow: launcher → [host] → `worker.trioton_worker.host`, whose messages it speaks → one `HostedThread` or `HostedFork`
for each instance, which is then spoken to as any worker is. Owned by the launcher; closed with its last instance.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from backends.python.environments.environment import Environment
from backends.python.workers.forked_process import ForkedProcess
from backends.python.workers.process import WorkerProcess
from backends.python.workers.process_control import HungUp, ProcessControl
from protocol.errors import Internal
from protocol.log.tags import TaggedLog, TagsNow

# How long a host may take to end by itself, and a killed one to be gone.
_EXIT_SECONDS = 2.0
_REAP_SECONDS = 5.0


class HostGone(Exception):
    """The host has ended; it takes no more instances."""


class Host:
    """One process; it is closed when the last instance in it is.

    To be made in the thread that runs Trio. Raises OSError where the interpreter cannot be started.
    """

    def __init__(self, environment: Environment, log: TaggedLog, name: str) -> None:
        self.name = name
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.process = WorkerProcess(environment, theirs, log, name, "host")
            except BaseException:
                ours.close()
                raise
        self._log = log
        self._control = ProcessControl(ours)
        self._forwarding = trio.Lock()
        self.instances = 0

    async def load(self, head: Mapping[str, object]) -> None:
        """Load the model, so that it can be forked.

        Raises:
            Internal: the model has failed, or the process has ended.
        """
        file = os.memfd_create("trioton", os.MFD_CLOEXEC)
        try:
            os.write(file, json.dumps(dict(head)).encode())
            answer: Any = None
            problem = ""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.forward_output)
                try:
                    answer, _ = await self._ask({"do": "load"}, [file])
                except HostGone as gone:
                    problem = str(gone)
                nursery.cancel_scope.cancel()
        finally:
            os.close(file)
        if answer is None:
            await self.process.log_last_output(dict)
            printed = "".join(f"\n  {line}" for line in self.process.tail)
            raise Internal(f"{problem} while it loaded the model; it printed last:{printed}")
        if "message" in answer:
            self._log.error("%s: %s", self.name, answer["traceback"].rstrip())
            raise Internal(answer["message"])

    async def thread(self, control: socket.socket) -> HostedThread:
        """Serve an instance in a thread of the process. Raises HostGone."""
        ended, their_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            await self._send({"do": "thread"}, [control.fileno(), their_end])
        except BaseException:
            os.close(ended)
            raise
        finally:
            os.close(their_end)
        self.instances += 1
        return HostedThread(self, ended)

    async def fork(self, control: socket.socket) -> HostedFork:
        """Serve an instance in a fork of the process, which has loaded the model. Raises HostGone."""
        with trio.CancelScope(shield=True):  # a fork that nobody knows of could not be ended; this one is short
            answer, [descriptor] = await self._ask({"do": "fork"}, [control.fileno()])
        self.instances += 1
        return HostedFork(self, answer["pid"], descriptor)

    async def reap(self, pid: int) -> None:
        """Have it wait for a fork that has ended (`waitpid`)."""
        with suppress(HostGone):
            await self._send({"do": "reap", "pid": pid})

    async def leave(self) -> None:
        """An instance is closed. Bounded, also under a shield."""
        self.instances -= 1
        if self.is_empty:
            await self.close()

    async def close(self) -> None:
        """End the process and all instances in it. Shielded and bounded."""
        self._control.close()
        with trio.move_on_after(_EXIT_SECONDS, shield=True):
            await self.process.wait_exit()
        await self.process.close()

    @property
    def is_empty(self) -> bool:
        return self.instances <= 0

    @property
    def is_usable(self) -> bool:
        return self._control.is_open and self.process.exit_text() is None

    async def forward_output(self) -> None:
        """Log the output of all instances together; any of their links may run it."""
        async with self._forwarding:
            await self.process.forward_output(dict)

    async def _ask(self, message: Mapping[str, object], descriptors: Sequence[int]) -> tuple[Any, list[int]]:
        try:
            return await self._control.ask(message, descriptors)
        except HungUp:
            raise HostGone(await self._end_text()) from None

    async def _send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        try:
            await self._control.send(message, descriptors)
        except HungUp:
            raise HostGone(await self._end_text()) from None

    async def _end_text(self) -> str:
        with trio.move_on_after(_EXIT_SECONDS):
            await self.process.wait_exit()
        return f"the worker process '{self.name}' {self.process.exit_text() or 'has closed its connection'}"


class _HostedInstance:
    """What both kinds have in common: the process's output."""

    noun = "worker process"
    killed_text = "was killed by the server"

    _host: Host

    @property
    def tail(self) -> list[str]:
        return self._host.process.tail

    async def forward_output(self, tags_now: TagsNow) -> None:
        """That of the other instances, too: so nobody knows whose requests it is about."""
        await self._host.forward_output()

    async def log_last_output(self, tags_now: TagsNow) -> None:
        await self._host.process.log_last_output(dict)


class HostedThread(_HostedInstance):
    """An instance in a thread of the host: whatever ends the process ends all, and so does killing one."""

    def __init__(self, host: Host, ended: int) -> None:
        self._host = host
        self._ended = ended
        self._is_closed = False
        self._has_ended = False  # the thread alone
        self._is_closing = False

    def resident_bytes(self) -> int | None:
        """Its share: that of the process, for each of those in it."""
        whole = self._host.process.resident_bytes()
        return None if whole is None else whole // max(self._host.instances, 1)

    def exit_text(self) -> str | None:
        self._look()
        return "ended" if self._has_ended else self._host.process.exit_text()

    async def wait_exit(self) -> None:
        if self._is_closed or self.exit_text() is not None:
            await trio.lowlevel.checkpoint()
            return
        descriptor = _opened_again(self._ended)  # each wait needs one of its own
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        if self.exit_text() is None:  # the pipe is closed a little before the process has ended
            await self._host.process.wait_exit()

    def kill(self) -> None:
        if self.exit_text() is None:
            self._host.process.kill()

    async def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        with trio.CancelScope(shield=True):
            if self.exit_text() is None:
                self._host.process.kill()
                with trio.move_on_after(_REAP_SECONDS):
                    await self.wait_exit()
            self._is_closed = True
            os.close(self._ended)
            await self._host.leave()

    def _look(self) -> None:
        if not self._has_ended and not self._is_closed:
            with suppress(BlockingIOError):
                self._has_ended = bool(os.read(self._ended, 1))


class HostedFork(ForkedProcess, _HostedInstance):
    """An instance in a child process of the host."""

    def __init__(self, host: Host, pid: int, descriptor: int) -> None:
        super().__init__(pid, descriptor, host.reap)
        self._host = host

    async def close(self) -> None:
        if self._is_closing:
            return
        with trio.CancelScope(shield=True):
            await super().close()
            await self._host.leave()


def _opened_again(descriptor: int) -> int:
    """The same pipe as a file of its own, where the system can do that. Of a copy epoll goes on reporting the number
    after it is closed, while the other one is open, and wakes whoever waits for what has that number then."""
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return os.dup(descriptor)
