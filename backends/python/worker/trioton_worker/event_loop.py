"""The asyncio event loop of models with `async def execute`, for which alone a worker imports asyncio."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Coroutine

from .process_exit import print_error
from .switchboard import Switchboard

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


class BackgroundLoop:
    """One for the instance's life, so that what a model made in it stays usable, and in a thread of its own, so that
    the model's tasks go on between batches. It begins with the first coroutine. `break_off` ends the instance where
    the loop itself fails, as after the model has closed its descriptors: what it runs would never end."""

    def __init__(self, switchboard: Switchboard, break_off: Callable[[BaseException], None]) -> None:
        self._switchboard = switchboard
        self._break_off = break_off
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Import now what the first coroutine would wait for: tens of milliseconds."""
        import asyncio  # noqa: F401

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin to run it; the future is done when it has ended."""
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = self._switchboard.own_loop = asyncio.new_event_loop()
                threading.Thread(target=self._run, args=(self._loop,), name="execute", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End it, with what it has begun; for a process that goes on without it."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        import asyncio

        try:
            while not self._has_run(loop):
                pass
        except BaseException as error:  # of no task or callback: the loop would fail again
            self._break_off(error)
            with suppress(Exception):
                loop.close()
            return
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.close()

    def _has_run(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run until it is stopped; False where a task of the model's has ended by what asyncio lets through, as
        sys.exit(): others go on."""
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            print_error(error)
            return False
        return True
