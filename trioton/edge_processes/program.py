"""An edge process: serves the connections that the core's process hands to it, and ends with that process."""

from __future__ import annotations

import ctypes
import pickle
import signal
import socket
import sys
from collections import Counter
from contextlib import suppress
from functools import partial

import trio

from backends.free_memory import collect_less
from protocol.access.told_keys import ToldKeys
from protocol.edge_link.linked_core import LinkedCore
from protocol.errors import Unavailable
from protocol.failures import CallbackFailures
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import AccessLog
from protocol.log.failure_log import FailureLog
from protocol.open_connections import OpenConnections
from protocol.reactor.arrivals import HandedOver
from protocol.reactor.drivers import the_poller
from protocol.sync.wakeup import Wakeup
from trioton.allocator import give_back_when_idle, keep_freed_memory
from trioton.edge_processes.access_lines import LineSender
from trioton.edge_processes.channel import Channel, ChannelFull, ChannelLost
from trioton.edge_processes.failed_calls import FailureTeller
from trioton.edge_processes.figures import FigureSource, KeyUseSource, RelayedCalls
from trioton.edge_processes.linked import Linking, Tracing
from trioton.edge_processes.log import log_to
from trioton.edge_processes.messages import (
    Connect,
    KeysChanged,
    Leave,
    Ping,
    Progress,
    Ready,
    Stop,
    ToCore,
    ToEdge,
    Upstream,
)
from trioton.edge_processes.serving import Serving, edge_services
from trioton.edge_processes.start import IGNORED_SIGNALS, EdgeStart
from trioton.garbage import collect_garbage, held_for_clients
from trioton.loop_lag import LoopLag

_PR_SET_NAME = 15
# For the last lines of the access log.
_LAST_LINES_SECONDS = 2.0


def main() -> None:
    number, descriptor, link = map(int, sys.argv[1:])
    # The core's process says when to end; a terminal or a supervisor that signals every process does not.
    for ignored in IGNORED_SIGNALS:
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    _set_name(f"trioton-edge-{number}")
    start = pickle.loads(sys.stdin.buffer.read())
    assert isinstance(start, EdgeStart)
    control = socket.socket(fileno=descriptor)
    linked = socket.socket(fileno=link)
    for each in (control, linked):
        each.set_inheritable(False)
    keep_freed_memory()
    trio.run(EdgeProgram(start, control, linked).run)


class EdgeProgram:
    """One edge process."""

    def __init__(self, start: EdgeStart, control: socket.socket, linked: socket.socket) -> None:
        self._start = start
        self._channel: Channel[ToCore, ToEdge] = Channel(control, ToEdge)
        self._limits = LimitCounter()
        self._failures = CallbackFailures()
        self._connections = OpenConnections()
        self._memory = RequestMemory(start.memory, "each edge process")
        self._lag = LoopLag()
        self._core = LinkedCore(linked, failures=self._failures)
        self._tracing = Tracing(self._core)
        self._lines = LineSender(self._channel)
        self._keys = ToldKeys(lambda: self._core.keys_number, self._core) if start.has_keys else None
        self._key_use = None if self._keys is None else KeyUseSource(self._keys.ledger)
        self._keys_changed = Wakeup()
        self._relayed = RelayedCalls()
        self._figures = FigureSource(self._limits, self._failures, self._lag, self._connections, self._relayed)
        self._arrivals = {
            word: HandedOver(address, partial(self._note_end, word)) for word, address in start.addresses.items()
        }
        self._taken = 0
        self._lost = 0
        self._ended: Counter[str] = Counter()
        self._has_progress = Wakeup()
        self._leaving = trio.Event()
        self._stop = trio.Event()

    async def run(self) -> None:
        """Until told to stop, and everything is answered; or the core's process is gone."""
        start = self._start
        log_to(self._channel, start.log_verbose)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._channel.write)
            nursery.start_soon(self._tell_progress)
            nursery.start_soon(self._lag.run)
            nursery.start_soon(give_back_when_idle)
            nursery.start_soon(self._receive, nursery.cancel_scope)
            poller = the_poller(start.poller)
            with poller.busy.limited_to(start.busy_poll_seconds):
                nursery.start_soon(self._lines.run)
                await nursery.start(self._run_link, nursery.cancel_scope)
                if self._keys is not None:
                    await nursery.start(self._keep_keys, self._keys)
                async with trio.open_nursery() as services:
                    for serve in edge_services(start, self._serving()):
                        await services.start(serve)
                    collect_less()
                    nursery.start_soon(collect_garbage, partial(held_for_clients, self._connections, self._memory))
                    self._channel.send(Ready())
            with trio.move_on_after(_LAST_LINES_SECONDS):
                await self._lines.flush()
            nursery.cancel_scope.cancel()
        self._channel.close()

    def _serving(self) -> Serving:
        return Serving(
            arrivals=self._arrivals,
            open_upstream=self._open_upstream,
            limits=self._limits,
            failures=self._failures,
            connections=self._connections,
            memory=self._memory,
            linking=self._linking(self._memory),
            relayed=self._relayed,
            leaving=self._leaving,
            stop=self._stop,
        )

    def _linking(self, memory: RequestMemory) -> Linking:
        failure_log = FailureLog()
        if self._start.tells_failures:
            failure_log.on_failure = FailureTeller(self._channel).note
        access_log = AccessLog(self._start.access, self._lines.put)
        return Linking(
            *(self._core, self._keys, self._tracing, self._limits, memory, self._failures, access_log, failure_log),
            fetches_media=self._start.fetches_media,
        )

    async def _keep_keys(
        self, keys: ToldKeys, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Started once they are known. The core's process decides for those that are not."""
        with suppress(Unavailable):  # the core is gone
            while True:
                while not keys.are_current:
                    table = await self._core.key_table()
                    assert table is not None
                    keys.take(table)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await self._keys_changed.wait()

    async def _receive(self, scope: trio.CancelScope) -> None:
        while True:
            try:
                message, passed = await self._channel.receive()
            except ChannelLost:  # the core is gone, and everything with it
                scope.cancel()
                return
            match message:
                case Connect(word, is_too_many):
                    self._taken += 1
                    if passed is not None:
                        self._arrivals[word].put(passed, is_too_many=is_too_many)
                    else:  # there was no descriptor left: the kernel has closed it
                        self._lost += 1
                        if not is_too_many:
                            self._ended[word] += 1
                    self._has_progress.wake()
                case Leave():
                    self._leaving.set()
                case Stop():
                    self._leaving.set()
                    self._stop.set()
                case KeysChanged():
                    self._keys_changed.wake()
                case Ping():
                    if self._key_use is not None and (used := self._key_use.take()) is not None:
                        self._channel.send(used)
                    self._channel.send(self._figures.take())

    async def _run_link(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The core is gone with it."""
        await self._core.run(task_status=task_status)
        scope.cancel()

    def _note_end(self, word: str) -> None:
        self._ended[word] += 1
        self._has_progress.wake()

    async def _tell_progress(self) -> None:
        while True:
            if self._taken or self._ended:
                taken, ended, lost = self._taken, dict(self._ended), self._lost
                self._taken = self._lost = 0
                self._ended.clear()
                self._channel.send(Progress(taken, ended, lost))
            await self._has_progress.wait()

    async def _open_upstream(self, word: str, client: str) -> trio.SocketStream:
        """A connection to the core's edge, which may be used before the core knows of it. Raises OSError, or
        trio.BrokenResourceError where the core does not keep up."""
        own, its = socket.socketpair()
        try:
            self._channel.send(Upstream(word, client), its)
        except ChannelFull:
            own.close()
            raise trio.BrokenResourceError("the core takes no more connections now") from None
        return trio.SocketStream(trio.socket.from_stdlib_socket(own))


def _set_name(name: str) -> None:
    """As `ps` and `top` show it."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
