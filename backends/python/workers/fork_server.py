"""Fork servers: processes from which workers are forked within milliseconds, one for each interpreter and set of
environment variables.

Flow: launcher → [fork server] → `worker.trioton_worker.fork_server` → the runner of a worker. Owned by the server, not
by a load; ended once no worker has needed it for a while. A fork server that cannot be started, or that has died, is no
error: the worker is then started directly.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import trio

from backends.python.environments.environment import Environment
from backends.python.workers.forked_process import ForkedProcess
from backends.python.workers.output import Output
from backends.python.workers.process import WorkerProcess
from backends.python.workers.process_control import HungUp, ProcessControl
from protocol.errors import text_of
from protocol.log.tags import TaggedLog, TagsNow

logger = logging.getLogger("trioton.backends.python")

# How long a fork server may take to start, and to fork: far longer than either takes.
_START_SECONDS = 30.0
_FORK_SECONDS = 5.0
# How long it may take to end by itself.
_EXIT_SECONDS = 2.0
# Fork servers of which no worker lives, kept for those that come, and for how long.
_MOST_IDLE = 4
_IDLE_SECONDS = 60.0
_MOST_WITHOUT = 64
# When it is tried again: an environment may have been mended.
_RETRY_SECONDS = 60.0


class ForkServerGone(Exception):
    """The fork server has ended; it forks no more workers."""


class ForkServer:
    """A process that forks workers of one environment. The kernel kills its workers when it dies. `turned_idle` is
    called when nobody needs it any more."""

    def __init__(self, environment: Environment, turned_idle: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.process = WorkerProcess(environment, theirs, TaggedLog(logger, {}), "fork server", "fork_server")
            except BaseException:
                ours.close()
                raise
        self.users = 0  # its workers, and who is about to fork one
        self.idle_since = trio.current_time()
        self.holds_environment = environment.hold is not None
        self._control = ProcessControl(ours)
        self._turned_idle = turned_idle

    def add_user(self) -> None:
        self.users += 1

    def remove_user(self) -> None:
        self.users -= 1
        if not self.users:
            self.idle_since = trio.current_time()
            self._turned_idle()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """It is not ended within the block for being idle."""
        self.add_user()
        try:
            yield
        finally:
            self.remove_user()

    @property
    def is_usable(self) -> bool:
        return self._control.is_open and self.process.exit_text() is None

    async def wait_ready(self) -> None:
        """Wait until it can fork. Raises ForkServerGone."""
        try:
            with trio.fail_after(_START_SECONDS):
                await self._control.receive()
        except (HungUp, trio.TooSlowError):
            raise ForkServerGone from None

    async def fork(
        self,
        environment: Environment,
        control: socket.socket,
        cores: frozenset[int],
        imports: Sequence[str],
        log: TaggedLog,
        name: str,
    ) -> ForkedWorker:
        """Fork a worker that serves on `control`, on these cores, with these modules of Python, which the fork server
        keeps. Raises ForkServerGone."""
        ours, theirs = os.pipe()
        self.add_user()
        message = {
            "do": "fork",
            "cores": sorted(cores or _own_cores()),
            "directory": _directory(environment),
            "imports": imports,
        }
        try:
            with trio.CancelScope(shield=True):  # a fork that nobody knows of could not be ended; this one is short
                with trio.fail_after(_FORK_SECONDS):
                    answer, [descriptor] = await self._control.ask(message, [control.fileno(), theirs])
        except (HungUp, trio.TooSlowError):
            os.close(ours)
            self.remove_user()
            self.process.kill()  # also what it may have forked
            raise ForkServerGone from None
        finally:
            os.close(theirs)
        return ForkedWorker(self, answer["pid"], descriptor, Output(ours, log, name))

    async def reap(self, pid: int) -> None:
        """Have it wait for a worker that has ended (`waitpid`)."""
        with suppress(HungUp):
            await self._control.send({"do": "reap", "pid": pid})

    async def close(self) -> None:
        """End the process. Shielded and bounded."""
        self._control.close()
        with trio.move_on_after(_EXIT_SECONDS, shield=True):
            await self.process.wait_exit()
        await self.process.close()


class ForkedWorker(ForkedProcess):
    """A worker process whose parent is a fork server."""

    noun = "worker process"
    killed_text = "was killed by the server"

    def __init__(self, fork_server: ForkServer, pid: int, descriptor: int, output: Output) -> None:
        super().__init__(pid, descriptor, fork_server.reap)
        self._fork_server = fork_server
        self._output = output

    @property
    def tail(self) -> list[str]:
        return self._output.tail

    async def forward_output(self, tags_now: TagsNow) -> None:
        await self._output.forward(tags_now)

    async def log_last_output(self, tags_now: TagsNow) -> None:
        await self._output.log_last(tags_now)

    async def close(self) -> None:
        if self._is_closing:
            return
        with trio.CancelScope(shield=True):
            await super().close()
        self._output.close()
        self._fork_server.remove_user()


class ForkServers:
    """All fork servers of one inference server: started when they are needed, and ended some time after that."""

    def __init__(self) -> None:
        # By interpreter and variables; the one used last is last.
        self._by_key: dict[str, ForkServer] = {}
        # Keys whose fork server could not start, and when: a Python that lacks what it needs, or does not run.
        self._without: dict[str, float] = {}
        self._changing: dict[str, trio.Lock] = {}
        self._turned_idle = trio.Event()

    async def run(self) -> None:
        """End those that have been idle for long, until cancelled."""
        while True:
            due = min((self._by_key[key].idle_since for key in self._idle()), default=math.inf) + _IDLE_SECONDS
            with trio.move_on_at(due):
                await self._turned_idle.wait()
            self._turned_idle = trio.Event()
            latest = trio.current_time() - _IDLE_SECONDS
            await self._end([key for key in self._idle() if self._by_key[key].idle_since <= latest])

    async def start(
        self,
        environment: Environment,
        control: socket.socket,
        cores: frozenset[int],
        imports: Sequence[str],
        log: TaggedLog,
        name: str,
    ) -> ForkedWorker | None:
        """Fork a worker. None where it is to be started directly instead."""
        key = _key_of(environment)
        try:
            async with self._changing.setdefault(key, trio.Lock()):
                fork_server = await self._fork_server(key, environment)
                if fork_server is None:
                    return None
                with fork_server.in_use():
                    await self._end(self._superfluous())
                    return await fork_server.fork(environment, control, cores, imports, log, name)
        except ForkServerGone:
            logger.warning("%s: the fork server has ended; the worker is started directly", name)
            return None

    async def close(self) -> None:
        while self._by_key:
            _, fork_server = self._by_key.popitem()
            await fork_server.close()

    async def _fork_server(self, key: str, environment: Environment) -> ForkServer | None:
        """The fork server with this key, started if there is none that lives. None where there can be none."""
        if trio.current_time() < self._without.get(key, -math.inf) + _RETRY_SECONDS:
            return None
        found = self._by_key.pop(key, None)
        if found is not None and not found.is_usable:
            await found.close()
            found = None
        if found is None:
            found = await self._made(key, environment)
        if found is not None:
            self._by_key[key] = found
        return found

    async def _made(self, key: str, environment: Environment) -> ForkServer | None:
        try:
            made = ForkServer(environment, self._note_idle)
        except OSError as error:
            logger.debug("cannot start a fork server: %s", text_of(error))
            return None  # to start the worker fails as well, and says why
        try:
            await made.wait_ready()
        except ForkServerGone:
            logger.debug("'%s' cannot be a fork server", environment.interpreter)
            if len(self._without) >= _MOST_WITHOUT:
                self._without.clear()
            self._without[key] = trio.current_time()
            await made.close()
            return None
        except BaseException:
            await made.close()
            raise
        return made

    def _note_idle(self) -> None:
        self._turned_idle.set()

    def _idle(self) -> list[str]:
        """The keys of those that nobody uses, the one used last behind the others."""
        return [key for key, found in self._by_key.items() if not found.users]

    def _superfluous(self) -> list[str]:
        """The idle ones but for the last few. Of those that keep an unpacked environment from being removed, all."""
        idle = self._idle()
        kept = idle[-_MOST_IDLE:]
        return [key for key in idle if key not in kept or self._by_key[key].holds_environment]

    async def _end(self, keys: Sequence[str]) -> None:
        """End these, unless they are used meanwhile."""
        for key in keys:
            found = self._by_key.get(key)
            if found is not None and not found.users:
                del self._by_key[key]
                await found.close()


def _key_of(environment: Environment) -> str:
    """Short, since it is kept; variables may be secrets."""
    text = repr((environment.interpreter, sorted(environment.variables.items())))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _own_cores() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _directory(environment: Environment) -> str:
    """Where the worker begins; empty where that is no place."""
    if environment.working_directory is not None:
        return environment.working_directory
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
