"""When the poller polls: an instrument of Trio's that waits in place of Trio, or a task that Trio wakes.

Flow: Trio's loop -> [drivers] -> poller

A task that waits for a socket by Trio's own means costs, for each event, a turn of the loop, the task's wake-up and an
`epoll_ctl`. So before Trio waits for I/O, `InlineDriver` does so in its place, on the poller's sockets and on the
descriptor of Trio's epoll: Trio goes on as soon as there is anything for it, be it a socket of a task, a deadline, a
signal, another thread, or a task that a callback has woken. For that it reads one private attribute of Trio's.
`TaskDriver` uses Trio's public interface only; it is the fallback where the attribute or epoll is missing, and
`docs/design.md` says what it costs.
"""

from __future__ import annotations

import logging
import select
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, TypeAlias

import trio

from protocol.reactor.poller import Poller
from protocol.reactor.socket_tasks import SocketTasks

logger = logging.getLogger("trioton.poller")

PollerKind: TypeAlias = Literal["inline", "task"]

_POLLER: trio.lowlevel.RunVar[Poller] = trio.lowlevel.RunVar("poller")


def the_poller(kind: PollerKind = "inline") -> Poller:
    """That of this run of Trio; made, of this kind if it can be, when it is first asked for."""
    try:
        return _POLLER.get()
    except LookupError:
        made = _start(kind)
        _POLLER.set(made)
        return made


def _start(kind: PollerKind) -> Poller:
    if not has_epoll():
        logger.warning(
            "this system has no epoll: each socket is waited for by a task of its own, which takes some more "
            "processor time for each request"
        )
        tasks = SocketTasks()
        return _start_task(Poller(tasks), tasks.wait)
    epoll = select.epoll()
    poller = Poller(epoll, select.epoll())
    if kind == "inline":
        descriptor = trio_epoll_descriptor()
        if descriptor is not None:
            poller.watch_trio(descriptor)
            trio.lowlevel.add_instrument(InlineDriver(poller))
            return poller
        logger.warning(
            "Trio %s does not show its epoll descriptor: sockets are waited for by a task, as with --poller=task, "
            "which takes some more processor time for each request",
            trio.__version__,
        )
    return _start_task(poller, partial(trio.lowlevel.wait_readable, epoll.fileno()))


def _start_task(poller: Poller, wait: Callable[[], Awaitable[None]]) -> Poller:
    driver = TaskDriver(poller, wait)
    trio.lowlevel.spawn_system_task(driver.run, name="poller")
    trio.lowlevel.add_instrument(driver)
    return poller


def has_epoll() -> bool:
    return sys.platform == "linux"


def trio_epoll_descriptor() -> int | None:
    """Of the epoll that Trio waits with, which is readable when there is something for Trio. Trio shows a kqueue
    publicly (`current_kqueue`), but no epoll; None if the attribute is missing."""
    try:
        epoll = trio._core._run.GLOBAL_RUN_CONTEXT.runner.io_manager._epoll
        return epoll.fileno()
    except AttributeError:
        return None


class InlineDriver(trio.abc.Instrument):
    """Waits in place of Trio, for as long as Trio says that it is about to wait."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._token = trio.lowlevel.current_trio_token()
        self._has_woken = False  # a task, since Trio was about to wait

    def before_io_wait(self, timeout: float) -> None:
        poller = self._poller
        if not poller.watched:
            return
        poller.has_called = self._has_woken = False
        end = time.perf_counter() + timeout
        try:
            while True:
                is_for_trio = poller.poll(timeout)
                # A callback that wakes a task may have closed its socket, and so what was there for Trio.
                if not timeout or (is_for_trio and not self._has_woken):
                    return
                timeout = end - time.perf_counter()
                if self._has_woken or timeout <= 0:
                    self._keep_trio_awake()
                    return
        except Exception:  # Trio would remove this instrument, and nobody would hear the sockets any more
            logger.exception("waiting for sockets failed; it is tried again, without busy polling")
            poller.busy.give_up()
            self._token.run_sync_soon(_nothing, idempotent=True)

    def _keep_trio_awake(self) -> None:
        """It would go on to wait for as long as it has said, without a look at these sockets. So it should if that was
        no deadline, but the time after which it takes itself for idle (`wait_all_tasks_blocked`). After a callback, it
        is not idle, and a deadline may have been put off."""
        is_due = self._has_woken or self._poller.has_called
        if is_due or trio.lowlevel.current_statistics().seconds_to_next_deadline <= 0:
            self._token.run_sync_soon(_nothing, idempotent=True)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._has_woken = True
        self._poller.woken += 1

    def after_run(self) -> None:
        self._poller.close()


class TaskDriver(trio.abc.Instrument):
    """A system task that polls whenever `wait` returns. It does not busy-poll: that would keep from Trio what comes for
    its tasks meanwhile."""

    def __init__(self, poller: Poller, wait: Callable[[], Awaitable[None]]) -> None:
        self._poller = poller
        self._wait = wait

    async def run(self) -> None:
        while True:
            await self._wait()
            try:
                self._poller.poll(0)
            except Exception:
                logger.exception("looking for sockets failed; it is tried again")
                await trio.lowlevel.checkpoint()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self._poller.woken += 1

    def after_run(self) -> None:
        self._poller.close()


def _nothing() -> None:
    pass
