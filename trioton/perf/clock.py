"""The load generator's clock and its timers, in nanoseconds.

Trio's own deadlines are rounded up to milliseconds by `epoll`, which would make requests late. On Linux a timer is a
descriptor that the poller watches, and is some 50 µs late; elsewhere, and in virtual time, it is a task that sleeps.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeAlias

import trio

from protocol.reactor.drivers import the_poller
from protocol.sync.wakeup import Wakeup

_NANOSECONDS = 1_000_000_000
_NONBLOCKING_CLOSED_ON_EXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1


Failed: TypeAlias = Callable[[Exception], None]


class Timer(Protocol):
    def set(self, at: int) -> None:
        """Call once at this time or soon after, at once where it has passed; not at the time that was set before."""


class Clock(Protocol):
    """What time it is, and who calls at a time."""

    def now(self) -> int: ...

    def timer(self, call: Callable[[], None], failed: Failed) -> AbstractAsyncContextManager[Timer]:
        """A timer that calls while the block lasts. `failed` is told what a call has raised, after which there are no
        more."""
        ...


class SystemClock:
    """Implements `Clock`: `time.perf_counter_ns`, which on Linux all processes share."""

    now = staticmethod(time.perf_counter_ns)

    def timer(self, call: Callable[[], None], failed: Failed) -> AbstractAsyncContextManager[Timer]:
        if sys.platform == "linux":
            return _descriptor_timer(call, failed)
        return _task_timer(self.now, call, failed)


class TrioClock:
    """Implements `Clock` by Trio's, which may be virtual."""

    def now(self) -> int:
        return round(trio.current_time() * _NANOSECONDS)

    def timer(self, call: Callable[[], None], failed: Failed) -> AbstractAsyncContextManager[Timer]:
        return _task_timer(self.now, call, failed)


class _Moment(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Setting(ctypes.Structure):
    _fields_ = [("interval", _Moment), ("value", _Moment)]


class _DescriptorTimer:
    """A `timerfd` of Linux."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._setting = _Setting()
        self._reference = ctypes.byref(self._setting)
        self._descriptor = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCKING_CLOSED_ON_EXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "a timer cannot be made")

    def fileno(self) -> int:
        return int(self._descriptor)

    def set(self, at: int) -> None:
        value = self._setting.value
        value.seconds, value.nanoseconds = divmod(max(at, 1), _NANOSECONDS)
        self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, self._reference, None)

    def fire(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        self._call()

    def close(self) -> None:
        os.close(self._descriptor)


@asynccontextmanager
async def _descriptor_timer(call: Callable[[], None], failed: Failed) -> AsyncIterator[Timer]:
    timer, poller = _DescriptorTimer(call), the_poller()
    try:
        poller.add(timer, timer.fire, failed, later=True)  # so that it looks again for connections only
        yield timer
    finally:
        poller.remove(timer)
        timer.close()


class _TaskTimer:
    def __init__(self, now: Callable[[], int], call: Callable[[], None], failed: Failed) -> None:
        self._now, self._call, self._failed = now, call, failed
        self._at: int | None = None
        self._scope = trio.CancelScope()
        self._wakeup = Wakeup()

    def set(self, at: int) -> None:
        self._at = at
        self._scope.cancel()  # it sleeps for another time
        self._wakeup.wake()

    async def run(self) -> None:
        while True:
            if self._at is None:
                await self._wakeup.wait()
                continue
            with trio.CancelScope() as self._scope:
                await trio.sleep((self._at - self._now()) / _NANOSECONDS if self._at > self._now() else 0)
            if self._scope.cancelled_caught:
                continue
            self._at = None
            try:
                self._call()
            except Exception as error:
                self._failed(error)
                return


@asynccontextmanager
async def _task_timer(now: Callable[[], int], call: Callable[[], None], failed: Failed) -> AsyncIterator[Timer]:
    timer = _TaskTimer(now, call, failed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        yield timer
        nursery.cancel_scope.cancel()
