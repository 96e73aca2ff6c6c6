"""Sockets that are waited for by a call each, in place of Trio's own wait: of clients between two requests, of workers.

    kernel -> [poller] -> a connection's call, or a worker's

To wait by Trio's own means is a task that wakes, a turn of the loop and some system calls each time. Here that wait is
one of those that are waited for: when no task can run, Trio tells its instruments how long it is about to sleep, and
this one sleeps in its place, on the sockets in sight and on whatever Trio waits for. Trio goes on as soon as there is
anything for it: a socket of a task, a deadline, a signal, another thread, a task that a call has woken.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import trio

from protocol.reactor.busy_polling import BusyPolling

logger = logging.getLogger("trioton.poller")

# What is called when there is something to read, and who is told of a defect that it has raised.
_Called: TypeAlias = tuple[Callable[[], None], Callable[[Exception], None]]

_READABLE = selectors.EVENT_READ  # as `select.EPOLLIN`
_MOST_AT_ONCE = 256  # sockets of one look
# After so many, workers and Trio have their turn, whatever clients send.
_MOST_LOOKS = 8

_THE_POLLER: trio.lowlevel.RunVar[Poller] = trio.lowlevel.RunVar("poller")


def the_poller() -> Poller:
    """That of this run of Trio; made when it is first asked for, since a thread can sleep in one place only."""
    try:
        return _THE_POLLER.get()
    except LookupError:
        made = Poller()
        _THE_POLLER.set(made)
        return made


class Poller(trio.abc.Instrument):
    """Whoever adds a socket removes it, at the latest soon after it was closed. `busy` is how it waits."""

    def __init__(self) -> None:
        self._system = select.epoll() if sys.platform == "linux" else _Selected()
        self.busy = BusyPolling(self._system.poll)
        self._descriptors: dict[socket.socket, int] = {}
        self._watched: dict[int, socket.socket] = {}
        self._calls: dict[int, _Called] = {}
        self._later_calls: dict[int, _Called] = {}
        self._asked_last: list[Callable[[], None]] = []
        self._last_calls: tuple[Callable[[], None], ...] = ()  # each of them once
        self._token = trio.lowlevel.current_trio_token()
        self._has_called = False  # since Trio was about to sleep
        self._has_woken = False  # a task, since then
        self._trio = _descriptor_of_loop()
        if self._trio is None:
            trio.lowlevel.spawn_system_task(self._wait_by_trio)
        else:
            self._system.register(self._trio, _READABLE)
            trio.lowlevel.add_instrument(self)

    def add(
        self,
        watched: socket.socket,
        call: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        later: bool = False,
    ) -> None:
        """Call when there is something to read, the end of the stream included, again and again until it is read. The
        call must not wait, since no task runs meanwhile. It may move a deadline away, but brings none nearer unless it
        wakes a task too: Trio may be asleep already.

        A defect that it raises costs its socket: that is removed, and `failed` is told, which ends what the socket
        belongs to, and must not wait either.

        With `later` it is called when all others have been called that have something: a worker that has ended its
        batch gets the next one with all requests that have come.
        """
        descriptor = watched.fileno()
        self._system.register(descriptor, _READABLE)
        self._calls.pop(descriptor, None)  # of one that was closed and is not removed yet
        self._later_calls.pop(descriptor, None)
        self._descriptors[watched] = descriptor
        self._watched[descriptor] = watched
        (self._later_calls if later else self._calls)[descriptor] = call, failed

    def remove(self, watched: socket.socket) -> None:
        """It is not called any more. It may have been closed just before, or removed as its call had failed."""
        descriptor = self._descriptors.pop(watched, -1)
        if self._watched.get(descriptor) is not watched:  # closed, and the system has given its number to another one
            return
        del self._watched[descriptor]
        self._calls.pop(descriptor, None)
        self._later_calls.pop(descriptor, None)
        with suppress(OSError):  # closed, and so forgotten by the system
            self._system.unregister(descriptor)

    @contextmanager
    def calling_last(self, call: Callable[[], None]) -> Iterator[None]:
        """Call, as long as this lasts, whenever all have been called that had something: their burst is over."""
        self._asked_last.append(call)
        self._last_calls = tuple(dict.fromkeys(self._asked_last))
        try:
            yield
        finally:
            self._asked_last.remove(call)
            self._last_calls = tuple(dict.fromkeys(self._asked_last))

    # What Trio tells its instruments.

    def before_io_wait(self, timeout: float) -> None:
        if not (self._calls or self._later_calls):
            return
        self._has_called = self._has_woken = False
        end = time.perf_counter() + timeout
        try:
            while True:
                is_for_trio = self._look(timeout)
                # A call that wakes a task may have closed a socket that it waited for, and so what was there for Trio.
                if not timeout or (is_for_trio and not self._has_woken):
                    return
                timeout = max(0.0, end - time.perf_counter())
                if self._has_woken or not timeout:
                    self._keep_trio_awake()
                    return
        except Exception:  # Trio would remove this instrument, and nobody would hear the sockets any more
            logger.exception("waiting for sockets failed; it is tried again, without busy polling")
            self.busy.give_up()
            self._token.run_sync_soon(_nothing, idempotent=True)

    def _keep_trio_awake(self) -> None:
        """It would go on to sleep for as long as it has said, hearing none of these sockets. So it should if that was
        no deadline, but the time after which it takes itself for idle (`wait_all_tasks_blocked`). After a call, that it
        is not idle, and a deadline may have been moved away."""
        is_due = self._has_woken or self._has_called
        if is_due or trio.lowlevel.current_statistics().seconds_to_next_deadline <= 0:
            self._token.run_sync_soon(_nothing, idempotent=True)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._has_woken = True

    def after_run(self) -> None:
        self._system.close()

    def _look(self, timeout: float) -> bool:
        """Wait until there is something, and call. Whether there is something for Trio."""
        calls, later_calls = self._calls, self._later_calls
        wait = self.busy.wait if timeout else self._system.poll
        has_called = False
        for _ in range(_MOST_LOOKS):
            later: list[int] = []
            count = 0
            for descriptor, _ in wait(timeout, _MOST_AT_ONCE):
                if (called := calls.get(descriptor)) is not None:
                    count += 1
                    try:
                        called[0]()
                    except Exception as error:
                        self._fail(descriptor, called, error)
                else:  # also where its owner looks away since another was called
                    later.append(descriptor)
            has_called = has_called or count > 0
            if count in (0, len(calls)):
                break
            wait, timeout = self._system.poll, 0  # what has come while others were read can share their batch
        is_for_trio = False
        for descriptor in later:
            if (called := later_calls.get(descriptor)) is not None:
                has_called = True
                try:
                    called[0]()
                except Exception as error:
                    self._fail(descriptor, called, error)
            elif descriptor == self._trio:
                is_for_trio = True
        if has_called:
            self._has_called = True
            for call in self._last_calls:
                try:
                    call()
                except Exception:
                    logger.exception("a call at the end of a burst failed; it is tried again")
                    with suppress(Exception):
                        call()
        return is_for_trio

    def _fail(self, descriptor: int, called: _Called, error: Exception) -> None:
        if called in (self._calls.get(descriptor), self._later_calls.get(descriptor)):
            self.remove(self._watched[descriptor])
        try:
            called[1](error)
        except Exception:
            logger.exception("a socket's owner could not be told that its call has failed: %r", error)

    async def _wait_by_trio(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._system.fileno())
                try:
                    self._look(0)
                except Exception:
                    logger.exception("looking for sockets failed; it is tried again")
                    await trio.lowlevel.checkpoint()
        finally:
            self._system.close()


class _Selected:
    """What is used of `select.epoll`, where there is none. Not seen running."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def register(self, descriptor: int, events: int) -> None:
        with suppress(KeyError):  # of a socket that was closed before it was removed
            self._selector.unregister(descriptor)
        self._selector.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        return [(key.fd, events) for key, events in self._selector.select(timeout)]

    def fileno(self) -> int:
        assert hasattr(self._selector, "fileno"), "this system's selector cannot be waited for"
        descriptor: int = self._selector.fileno()
        return descriptor

    def close(self) -> None:
        self._selector.close()


def _descriptor_of_loop() -> int | None:
    """Is readable when there is something for Trio. There is no public way to it, so a Trio that keeps it elsewhere is
    got along with: sockets then cost a task's turn."""
    try:
        manager = trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager
    except AttributeError:
        return None
    found = getattr(manager, "_epoll", None) or getattr(manager, "_kqueue", None)
    return None if found is None else found.fileno()


def _nothing() -> None:
    pass
