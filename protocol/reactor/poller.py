"""Readiness callbacks for sockets: of clients between two requests, and of workers.

Flow: kernel -> [poller] -> a connection's callback, or a worker link's

One for each run of Trio, since a thread can wait in one place only; it lives as long as the run. `drivers` says when it
polls: in place of Trio's own wait for I/O, or from a task. Callbacks are synchronous, run in Trio's thread, and never
while a task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Protocol, TypeAlias

from protocol.reactor.busy_polling import BusyPolling, Events

logger = logging.getLogger("trioton.poller")

# What is called when there is something to read, and who is told of a defect that it has raised.
_Callbacks: TypeAlias = tuple[Callable[[], None], Callable[[Exception], None]]

READABLE = 1  # EPOLLIN, which `select` has on Linux only
_MOST_AT_ONCE = 64  # sockets of one poll
# After so many polls, or so much time, workers and Trio have their turn, whatever clients send.
_MOST_POLLS = 32
_MOST_SECONDS = 0.002
# And after so many tasks that were woken: each takes some 50 us of the same turn of the loop.
_MOST_WOKEN = 32
# Of sockets that nothing has come from before, in one poll: so many at most, and one at least.
_MOST_NEW = 8
_MOST_SECONDS_OF_NEW = 0.0005


class Watched(Protocol):
    """A socket, or a pipe's reading end."""

    def fileno(self) -> int: ...


class Selector(Protocol):
    """What is used of `select.epoll`, level-triggered."""

    def register(self, descriptor: int, events: int, /) -> None: ...

    def unregister(self, descriptor: int, /) -> None: ...

    def poll(self, timeout: float, most: int, /) -> Events: ...

    def close(self) -> None: ...


class NestedSelector(Selector, Protocol):
    """One that another can wait for."""

    def fileno(self) -> int: ...


class Poller:
    """Whoever adds a socket removes it, at the latest soon after it was closed.

    With a selector for `newcomers` these have a few places in each poll, behind the others: of a thousand clients that
    come in one moment, each with its first request, those who were there before do not wait for all.

    Attributes:
        busy: how it waits.
        watched: the sockets, by their descriptors.
        has_called: a callback has been called since somebody last reset this.
        woken: tasks that were woken since the last poll began; counted by the driver.
        burst: a number of its own while the callbacks of a burst are called, and then those at its end; 0 between.
    """

    def __init__(self, selector: Selector, newcomers: NestedSelector | None = None) -> None:
        self.busy = BusyPolling(selector.poll)
        self.has_called = False
        self.woken = 0
        self.burst = 0
        self._bursts = 0
        self._selector = selector
        self._newcomers = newcomers
        self._newcomers_number = -1
        self._new: set[int] = set()  # descriptors that `newcomers` has
        if newcomers is not None:
            self._newcomers_number = newcomers.fileno()
            selector.register(self._newcomers_number, READABLE)
        self._descriptors: dict[Watched, int] = {}
        self.watched: dict[int, Watched] = {}
        self._calls: dict[int, _Callbacks] = {}
        self._later_calls: dict[int, _Callbacks] = {}
        self._first_of_later: set[int] = set()
        self._asked_last: list[Callable[[], None]] = []
        self._last_calls: tuple[Callable[[], None], ...] = ()  # each of them once
        self._trio = -1
        self._ready: Events = []  # of the poll before, and not called yet

    def add(
        self,
        watched: Watched,
        call: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        later: bool = False,
        first: bool = False,
        new: bool = False,
    ) -> None:
        """Call when there is something to read, the end of the stream included, again and again until it is read. The
        callback must not block. It may put off a deadline of Trio's, but bring one nearer only if it wakes a task too:
        Trio may be asleep already.

        A defect that it raises costs its socket: that is removed, and `failed` is told, which ends what the socket
        belongs to, and must not block either.

        With `later` it is called behind all others that are ready: a worker that has ended its batch gets the next one
        with all requests that have come. With `first`, too, it is called before the others of these: what a worker
        has printed is read before it is known to have ended its batch.

        One that is `new` has nothing come from it so far; it is a newcomer until it is first called.
        """
        descriptor = watched.fileno()
        if new and self._newcomers is not None:
            self._newcomers.register(descriptor, READABLE)
            self._new.add(descriptor)
        else:
            self._selector.register(descriptor, READABLE)
            self._new.discard(descriptor)
        self._calls.pop(descriptor, None)  # of one that was closed and is not removed yet
        self._later_calls.pop(descriptor, None)
        self._first_of_later.discard(descriptor)
        if first:
            self._first_of_later.add(descriptor)
        self._descriptors[watched] = descriptor
        self.watched[descriptor] = watched
        (self._later_calls if later else self._calls)[descriptor] = call, failed

    def remove(self, watched: Watched) -> None:
        """It is not called any more. It may have been closed just before, or removed as its callback had failed."""
        descriptor = self._descriptors.pop(watched, -1)
        if self.watched.get(descriptor) is not watched:  # closed, and the system has given its number to another one
            return
        del self.watched[descriptor]
        self._calls.pop(descriptor, None)
        self._later_calls.pop(descriptor, None)
        self._first_of_later.discard(descriptor)
        selector = self._selector
        if descriptor in self._new and self._newcomers is not None:
            selector = self._newcomers
            self._new.discard(descriptor)
        with suppress(OSError):  # closed, and so forgotten by the system
            selector.unregister(descriptor)

    @contextmanager
    def calling_last(self, call: Callable[[], None]) -> Iterator[None]:
        """Call, as long as this lasts, at the end of each burst: when all that were ready have been called."""
        self._asked_last.append(call)
        self._last_calls = tuple(dict.fromkeys(self._asked_last))
        try:
            yield
        finally:
            self._asked_last.remove(call)
            self._last_calls = tuple(dict.fromkeys(self._asked_last))

    def watch_trio(self, descriptor: int) -> None:
        """`poll` waits for this one, too, which is readable when there is something for Trio."""
        self._trio = descriptor
        self._selector.register(descriptor, READABLE)

    def poll(self, timeout: float) -> bool:
        """Wait until something is ready, for `timeout` seconds at most, and call. Returns whether there is something
        for Trio. Who was ready, and not called for a lack of time, is called first by the next poll."""
        ready = self._ready
        if ready:
            self._ready = []
        else:
            ready = self.busy.wait(timeout, _MOST_AT_ONCE) if timeout else self._selector.poll(0, _MOST_AT_ONCE)
        self.woken = 0
        if not ready:
            return False
        calls = self._calls
        has_called = is_over = False
        self.burst = self._bursts = self._bursts + 1
        end = perf_counter() + _MOST_SECONDS
        later: list[int] = []
        polls = 1
        while True:
            count, watched = 0, len(calls) - len(self._new)
            events = iter(ready)
            for descriptor, _ in events:
                if (called := calls.get(descriptor)) is not None:
                    count += 1
                    try:
                        called[0]()
                    except Exception as error:
                        self._fail(descriptor, called, error)
                    if perf_counter() >= end or self.woken >= _MOST_WOKEN:
                        is_over = True
                        self._put_off(events, later)
                        break
                elif descriptor in self._first_of_later:
                    later.insert(0, descriptor)
                else:  # also where its owner has removed it since another was called
                    later.append(descriptor)
            if not count:
                break
            has_called = True
            if is_over or polls == _MOST_POLLS or count == watched:  # the last: who could have sent meanwhile?
                break
            # What has come while others were read can share their batch.
            ready = self._selector.poll(0, _MOST_AT_ONCE)
            polls += 1
        is_for_trio = False
        if later:
            if self._newcomers_number in later:
                has_called = self._call_newcomers() or has_called
            later_calls = self._later_calls
            for descriptor in dict.fromkeys(later):
                if (called := later_calls.get(descriptor)) is not None:
                    has_called = True
                    try:
                        called[0]()
                    except Exception as error:
                        self._fail(descriptor, called, error)
                elif descriptor == self._trio:
                    is_for_trio = True
        if has_called:
            self.has_called = True
            for call in self._last_calls:
                try:
                    call()
                except Exception:
                    logger.exception("a call at the end of a burst failed; it is tried again")
                    with suppress(Exception):
                        call()
        self.burst = 0
        return is_for_trio

    def _put_off(self, ready: Iterable[tuple[int, int]], later: list[int]) -> None:
        """Who was not called yet, as the time is over. Those that are called behind all others are so now."""
        for event in ready:
            if event[0] in self._calls:
                self._ready.append(event)
            elif event[0] in self._first_of_later:
                later.insert(0, event[0])
            else:
                later.append(event[0])

    def _call_newcomers(self) -> bool:
        """Some of those that something has come from. The others are ready again in the next poll."""
        assert self._newcomers is not None
        end = perf_counter() + _MOST_SECONDS_OF_NEW
        has_called = False
        for descriptor, _ in self._newcomers.poll(0, _MOST_NEW):
            called = self._calls.get(descriptor) or self._later_calls.get(descriptor)
            if called is None or descriptor not in self._new:  # removed since another was called
                continue
            self._new.discard(descriptor)
            with suppress(OSError):  # closed since another was called
                self._newcomers.unregister(descriptor)
                self._selector.register(descriptor, READABLE)
            has_called = True
            try:
                called[0]()
            except Exception as error:
                self._fail(descriptor, called, error)
            if perf_counter() >= end:
                break
        return has_called

    def close(self) -> None:
        self._selector.close()
        if self._newcomers is not None:
            self._newcomers.close()

    def _fail(self, descriptor: int, called: _Callbacks, error: Exception) -> None:
        if called in (self._calls.get(descriptor), self._later_calls.get(descriptor)):
            self.remove(self.watched[descriptor])
        try:
            called[1](error)
        except Exception:
            logger.exception("a socket's owner could not be told that its callback has failed: %r", error)
